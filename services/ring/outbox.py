"""Text on its way to a reader that may be slow: news is coalesced per request, never queued per step.

Used by the detokenizer towards each processor and by the processor towards each client. What waits is counted and
bounded (``Outboxes``); how long a reader may take nothing is its owner's to watch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.ring.events import ChoiceEnd, Prefill
from services.ring.logprobs import PackedLogprobs

MAX_UNREAD_BYTES = 64 << 20
"""What may wait for one reader."""
_READERS = 2
"""What may wait for all readers of a process together is this many times what may wait for one."""

# Upper estimates of what things take on the wire, bytes.
_REQUEST_BYTES, _CHOICE_BYTES, _TOKEN_BYTES = 96, 96, 5
_UTF8_BYTES = 4
# And of what they take in memory beside that.
_REQUEST_HELD, _CHOICE_HELD, _DELTA_HELD, _ID_HELD, _NOTICE_HELD = 600, 500, 104, 36, 1000


@dataclass(slots=True)
class ChoiceNews:
    """One choice's tokens and the text they complete, since the last take; and its end."""

    first_position: int
    ids: list[int]
    texts: list[str]
    """Of each delta that is in here."""
    counts: list[int]
    """Ids of each delta."""
    logprobs: PackedLogprobs | None = None
    """Aligned to the end of ``ids``: resumed tokens have none."""
    wire_bytes: int = _CHOICE_BYTES
    """An upper estimate of all of it."""
    end: ChoiceEnd | None = None

    def add(self, ids: Sequence[int], text: str, logprobs: PackedLogprobs | None, size: int) -> None:
        """Add a delta of so many bytes on the wire; ``logprobs`` are this object's from now on."""
        self.ids.extend(ids)
        self.texts.append(text)
        self.counts.append(len(ids))
        if self.logprobs is None:
            self.logprobs = logprobs
        elif logprobs is not None:
            self.logprobs.extend(logprobs)
        self.wire_bytes += size

    def cut(self, room: int) -> tuple[ChoiceNews, int]:
        """The first deltas, as many as begin within ``room`` bytes and at least one, and their bytes.

        They are no longer here; the end goes with the last of them. All of it is returned as it is.
        """
        entry_bytes, scored = (self.logprobs.entry_bytes, len(self.logprobs)) if self.logprobs else (0, 0)
        unscored = len(self.ids) - scored
        deltas = num_ids = 0
        used = _CHOICE_BYTES
        for count, text in zip(self.counts, self.texts, strict=True):
            if used >= room and deltas > 0:
                break
            fresh = max(0, num_ids + count - max(num_ids, unscored))
            deltas, num_ids = deltas + 1, num_ids + count
            used += _TOKEN_BYTES * count + _UTF8_BYTES * len(text) + entry_bytes * fresh
        if deltas == len(self.texts):
            return self, used
        scores = self.logprobs.take(num_ids - unscored) if self.logprobs and num_ids > unscored else None
        head = ChoiceNews(
            self.first_position, self.ids[:num_ids], self.texts[:deltas], self.counts[:deltas], scores, used
        )
        del self.ids[:num_ids], self.texts[:deltas], self.counts[:deltas]
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
    held: int = 0
    """What it is counted with while it waits."""

    def measure(self) -> int:
        """About what it takes in memory, and no less."""
        size = _REQUEST_HELD + self.opening_bytes + _NOTICE_HELD * len(self.notices)
        if self.prompt_logprobs is not None:
            size += len(self.prompt_logprobs) * self.prompt_logprobs.entry_bytes
        for part in self.choices.values():
            size += _CHOICE_HELD + part.wire_bytes + _DELTA_HELD * len(part.texts) + _ID_HELD * len(part.ids)
        return size

    def add_prompt_logprobs(self, offset: int, scores: PackedLogprobs) -> None:
        """Add log probabilities of the prompt, before which ``offset`` came.

        Where they do not follow what is there, that is given up: the reader sees the gap, and asks for a replay.
        """
        if self.prompt_logprobs is None or self.prompt_offset + len(self.prompt_logprobs) != offset:
            self.prompt_logprobs, self.prompt_offset = scores, offset
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
            self.prompt_logprobs = scores.take(count) if count else None
            rest.prompt_logprobs, rest.prompt_offset = scores, self.prompt_offset + count
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


class Outboxes:
    """The outboxes of a process: what waits in each of them, and in all of them together, has a bound.

    A reader for whom more waits is lost. Where all wait for too much together, that is the one for whom the most waits
    of the tenant for whom the most waits: it is not the fault of others.
    """

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES) -> None:
        """``max_bytes`` may wait for one reader."""
        self.max_bytes = max_bytes
        self.max_total = _READERS * max_bytes
        self.total = 0
        """Bytes that wait in all of them."""
        self._open: dict[Outbox, tuple[str, Callable[[], None]]] = {}

    def open(self, tenant: str, lose: Callable[[], None]) -> Outbox:
        """An outbox for a reader of ``tenant``; ``lose`` is called when its reader is lost, and only notes that."""
        outbox = Outbox(self)
        self._open[outbox] = tenant, lose
        return outbox

    def close(self, outbox: Outbox) -> None:
        """Its reader is gone, or lost. Idempotent."""
        self._open.pop(outbox, None)
        outbox.closed = True
        outbox.clear()

    def overflow(self, outbox: Outbox) -> None:
        """There is too much in ``outbox``, or in all of them: a reader is lost, and what waits for it goes."""
        if outbox.size <= self.max_bytes:
            outbox = self._largest()
        _, lose = self._open[outbox]
        self.close(outbox)
        lose()

    def _largest(self) -> Outbox:
        held: dict[str, int] = {}
        for outbox, (tenant, _) in self._open.items():
            held[tenant] = held.get(tenant, 0) + outbox.size
        most = max(held, key=held.__getitem__)
        return max((box for box, (tenant, _) in self._open.items() if tenant == most), key=lambda box: box.size)


class Outbox:
    """News per request, in the order in which requests first had any."""

    def __init__(self, outboxes: Outboxes) -> None:
        """One of ``outboxes``, which make it."""
        self._outboxes = outboxes
        self._news: dict[str, RequestNews] = {}
        self.size = 0
        """Bytes that wait, or were taken last and may still be under way."""
        self._taken = 0
        """Of these, what was taken last."""
        self.closed = False
        """Whether its reader is gone, or lost: nothing is kept any more."""

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return anything."""
        return bool(self._news)

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
        """Add tokens and the text they complete; they follow what is there. ``logprobs`` are its own from now on."""
        if (news := self._of(request_id, epoch)) is not None:
            size = _TOKEN_BYTES * len(ids) + _UTF8_BYTES * len(text)
            held = _DELTA_HELD + _ID_HELD * len(ids)
            if logprobs is not None:
                size += len(logprobs) * logprobs.entry_bytes
            part = news.choices.get(choice)
            if part is None:
                size += _CHOICE_BYTES
                news.choices[choice] = ChoiceNews(first_position, [*ids], [text], [len(ids)], logprobs, size)
                self._grow(news, size + held + _CHOICE_HELD)
            else:
                part.add(ids, text, logprobs, size)
                self._grow(news, size + held)

    def end(self, request_id: str, epoch: int, choice: int, end: ChoiceEnd) -> None:
        """End a choice; nothing is added behind it."""
        if (news := self._of(request_id, epoch)) is not None:
            part = news.choices.get(choice)
            if part is None:
                part = news.choices[choice] = ChoiceNews(end.position, [], [], [])
                self._grow(news, _CHOICE_HELD + _CHOICE_BYTES)
            part.end = end

    def open(self, request_id: str, epoch: int, opening: object, size: int) -> None:
        """Say something before anything else, once; ``size`` on the wire."""
        if (news := self._of(request_id, epoch)) is not None:
            news.opening, news.opening_bytes = opening, size
            self._grow(news, size)

    def prefill(self, request_id: str, epoch: int, prefill: Prefill) -> None:
        """Say how far a prompt is."""
        if (news := self._of(request_id, epoch)) is not None:
            news.prefill = prefill
            self._grow(news, 0)

    def prompt_logprobs(self, request_id: str, epoch: int, offset: int, scores: PackedLogprobs) -> None:
        """Add log probabilities of a prompt, before which ``offset`` came; ``scores`` are its own from now on."""
        if (news := self._of(request_id, epoch)) is not None:
            news.add_prompt_logprobs(offset, scores)
            self._grow(news, news.measure() - max(news.held, _REQUEST_HELD))

    def notice(self, request_id: str, epoch: int, notice: object) -> None:
        """Say something before the deltas."""
        if (news := self._of(request_id, epoch)) is not None:
            news.notices.append(notice)
            self._grow(news, _NOTICE_HELD)

    def close(self, request_id: str, epoch: int, closing: object) -> None:
        """Say something after anything else, once."""
        if (news := self._of(request_id, epoch)) is not None:
            news.closing = closing
            self._grow(news, 0)

    def drop(self, request_id: str, epoch: int) -> None:
        """Forget what is pending of a request under ``epoch`` and lower ones."""
        news = self._news.get(request_id)
        if news is not None and news.epoch <= epoch:
            del self._news[request_id]
            self._shrink(news.held)

    def clear(self) -> None:
        """Forget everything."""
        self._news.clear()
        self._taken = 0
        self._shrink(self.size)

    def take(self, max_bytes: int) -> list[RequestNews]:
        """Everything new up to about ``max_bytes``, at least one delta; it is no longer here afterwards.

        A delta stays whole, and a request that has more than fits waits behind the others for its next turn. What is
        taken counts until more is taken: then it has been written.
        """
        self._shrink(self._taken)
        self._taken = 0
        taken: list[RequestNews] = []
        size = 0
        while self._news and size < max_bytes:
            request_id, news = next(iter(self._news.items()))
            del self._news[request_id]
            rest, used = news.cut(max_bytes - size)
            size += used
            taken.append(news)
            self._taken += news.held
            if rest is not None:
                self._news[request_id] = rest
                rest.held = rest.measure()
                self._taken -= rest.held
        return taken

    def _of(self, request_id: str, epoch: int) -> RequestNews | None:
        """The request's news, to add to; None if ``epoch`` is older than what is there. A higher epoch replaces it."""
        news = self._news.get(request_id)
        if self.closed:
            return None
        if news is None or news.epoch < epoch:
            if news is not None:
                self._shrink(news.held)
            news = self._news[request_id] = RequestNews(request_id, epoch)
        return news if news.epoch == epoch else None

    def _grow(self, news: RequestNews, size: int) -> None:
        if self.closed:
            return  # since the last call
        if not news.held:
            size += _REQUEST_HELD
        outboxes = self._outboxes
        news.held += size
        self.size += size
        outboxes.total += size
        if self.size > outboxes.max_bytes or outboxes.total > outboxes.max_total:
            outboxes.overflow(self)

    def _shrink(self, size: int) -> None:
        self.size -= size
        self._outboxes.total -= size
