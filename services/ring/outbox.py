"""Text on its way to a reader that may be slow: news is coalesced per request, never queued per step.

Used by the detokenizer towards each processor and by the processor towards each client. Memory is bounded by
what the live requests may generate; how long a reader may take nothing is its owner's to watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.ring.events import ChoiceEnd, Prefill
from services.ring.logprobs import PackedLogprobs

_REQUEST_BYTES, _CHOICE_BYTES, _TOKEN_BYTES = 96, 96, 5
_UTF8_BYTES = 4


@dataclass(slots=True)
class ChoiceNews:
    """One choice's tokens and the text they complete, since the last take; and its end."""

    first_position: int
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: PackedLogprobs | None = None
    """Aligned to the end of ``ids``: resumed tokens have none."""
    end: ChoiceEnd | None = None
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each delta that is in here: ids, log probabilities, bytes."""
    wire_bytes: int = _CHOICE_BYTES
    """An upper estimate of all of it."""

    def add(self, ids: Sequence[int], text: str, logprobs: PackedLogprobs | None) -> None:
        """Add a delta; ``logprobs`` are this object's from now on."""
        self.ids.extend(ids)
        self.texts.append(text)
        size, scored = _TOKEN_BYTES * len(ids) + _UTF8_BYTES * len(text), 0
        if logprobs:
            scored = len(logprobs)
            size += scored * logprobs.entry_bytes
            if self.logprobs is None:
                self.logprobs = logprobs
            else:
                self.logprobs.extend(logprobs)
        self.sizes.append((len(ids), scored, size))
        self.wire_bytes += size

    def cut(self, room: int) -> tuple[ChoiceNews, int]:
        """The first deltas, as many as begin within ``room`` bytes and at least one, and their bytes.

        They are no longer here; the end goes with the last of them. All of it is returned as it is.
        """
        count = num_ids = num_logprobs = 0
        used = _CHOICE_BYTES
        for ids, logprobs, size in self.sizes:
            if used >= room and count > 0:
                break
            count, num_ids, num_logprobs, used = count + 1, num_ids + ids, num_logprobs + logprobs, used + size
        if count == len(self.sizes):
            return self, used
        scores = self.logprobs.take(num_logprobs) if self.logprobs is not None and num_logprobs else None
        head = ChoiceNews(self.first_position, self.ids[:num_ids], self.texts[:count], scores)
        del self.ids[:num_ids], self.texts[:count], self.sizes[:count]
        self.first_position += num_ids
        self.wire_bytes -= used - _CHOICE_BYTES
        return head, used


@dataclass(slots=True)
class RequestNews:
    """Everything new of one request."""

    request_id: str
    epoch: int
    opening: object | None = None
    """Comes before anything else, once."""
    opening_bytes: int = 0
    """Its size on the wire."""
    prefill: Prefill | None = None
    prompt_logprobs: PackedLogprobs | None = None
    """Come before any delta."""
    prompt_offset: int = 0
    """How many of them came before."""
    notices: list[object] = field(default_factory=list)
    choices: dict[int, ChoiceNews] = field(default_factory=dict)
    closing: object | None = None
    """Comes after anything else, once."""

    def add_prompt_logprobs(self, offset: int, scores: PackedLogprobs) -> None:
        """Add log probabilities of the prompt, before which ``offset`` came.

        Where they do not follow what is there, that is given up: the reader sees the gap, and asks for a replay.
        """
        if self.prompt_logprobs is None or self.prompt_offset + len(self.prompt_logprobs) != offset:
            self.prompt_logprobs, self.prompt_offset = scores.part(0, len(scores)), offset
        else:
            self.prompt_logprobs.extend(scores)

    def cut(self, room: int) -> tuple[RequestNews | None, int]:
        """Keep about ``room`` bytes, at least one thing; returns the rest, if there is any, and the bytes kept."""
        used = _REQUEST_BYTES + self.opening_bytes
        if self.prompt_logprobs is not None:
            used += len(self.prompt_logprobs) * self.prompt_logprobs.entry_bytes
        whole = used
        for part in self.choices.values():
            whole += part.wire_bytes
        if whole <= room:
            return None, whole
        rest = RequestNews(self.request_id, self.epoch)
        choices, self.choices = self.choices, {}
        used = _REQUEST_BYTES + self.opening_bytes + self._cut_prompt(rest, room - _REQUEST_BYTES - self.opening_bytes)
        if rest.prompt_logprobs is not None:
            rest.choices = choices
        else:
            used += self._cut_choices(choices, rest, room - used)
        if rest.prompt_logprobs is None and not rest.choices:
            return None, used
        rest.closing, self.closing = self.closing, None
        return rest, used

    def _cut_prompt(self, rest: RequestNews, room: int) -> int:
        """Leave to ``rest`` the log probabilities of the prompt that do not fit; returns the bytes of what is kept."""
        scores = self.prompt_logprobs
        if scores is None:
            return 0
        count = min(len(scores), max(room // scores.entry_bytes, 0 if self.opening is not None else 1))
        if count < len(scores):
            rest.prompt_logprobs, rest.prompt_offset = scores.part(count, len(scores)), self.prompt_offset + count
            self.prompt_logprobs = scores.part(0, count) if count else None
        return count * scores.entry_bytes

    def _cut_choices(self, choices: dict[int, ChoiceNews], rest: RequestNews, room: int) -> int:
        """Keep the deltas that fit, at least one if nothing else is kept; returns their bytes."""
        used = 0
        for choice, part in choices.items():
            if used < room or not (self.choices or self.opening is not None or self.prompt_logprobs is not None):
                self.choices[choice], size = part.cut(room - used)
                used += size
            if self.choices.get(choice) is not part:
                rest.choices[choice] = part
        return used


class Outbox:
    """News per request, in the order in which requests first had any."""

    def __init__(self) -> None:
        self._news: dict[str, RequestNews] = {}

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return anything."""
        return bool(self._news)

    def of(self, request_id: str, epoch: int) -> RequestNews | None:
        """The request's news, to add to; None if ``epoch`` is older than what is there. A higher epoch replaces it."""
        news = self._news.get(request_id)
        if news is None or news.epoch < epoch:
            news = self._news[request_id] = RequestNews(request_id, epoch)
        return news if news.epoch == epoch else None

    def delta(
        self,
        request_id: str,
        epoch: int,
        choice: int,
        first_position: int,
        ids: Sequence[int],
        text: str,
        logprobs: PackedLogprobs | None = None,
    ) -> None:
        """Add tokens and the text they complete; they follow what is there."""
        if (news := self.of(request_id, epoch)) is not None:
            part = news.choices.get(choice)
            if part is None:
                part = news.choices[choice] = ChoiceNews(first_position)
            part.add(ids, text, logprobs)

    def end(self, request_id: str, epoch: int, choice: int, end: ChoiceEnd) -> None:
        """End a choice; nothing is added behind it."""
        if (news := self.of(request_id, epoch)) is not None:
            part = news.choices.get(choice)
            if part is None:
                part = news.choices[choice] = ChoiceNews(end.position)
            part.end = end

    def drop(self, request_id: str, epoch: int) -> None:
        """Forget what is pending of a request under ``epoch`` and lower ones."""
        news = self._news.get(request_id)
        if news is not None and news.epoch <= epoch:
            del self._news[request_id]

    def clear(self) -> None:
        """Forget everything."""
        self._news.clear()

    def take(self, max_bytes: int) -> list[RequestNews]:
        """Everything new up to about ``max_bytes``, at least one delta; it is no longer here afterwards.

        A delta stays whole, and a request that has more than fits waits behind the others for its next turn.
        """
        taken: list[RequestNews] = []
        size = 0
        while self._news and size < max_bytes:
            request_id, news = next(iter(self._news.items()))
            del self._news[request_id]
            rest, used = news.cut(max_bytes - size)
            size += used
            taken.append(news)
            if rest is not None:
                self._news[request_id] = rest
        return taken
