"""Text on its way to a reader that may be slow: news is coalesced per request, never queued per step.

Used by the detokenizer towards each processor and by the processor towards each client. Memory is bounded by
what the live requests may generate; how long a reader may take nothing is its owner's to watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.ring.events import ChoiceEnd, Prefill, TokenLogprob

_REQUEST_BYTES, _CHOICE_BYTES, _TOKEN_BYTES, _LOGPROB_BYTES, _ALTERNATIVE_BYTES = 96, 96, 5, 16, 10
_UTF8_BYTES = 4


@dataclass(slots=True)
class ChoiceNews:
    """One choice's tokens and the text they complete, since the last take; and its end."""

    first_position: int
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Aligned to the end of ``ids``: resumed tokens have none."""
    end: ChoiceEnd | None = None


@dataclass(slots=True)
class RequestNews:
    """Everything new of one request."""

    request_id: str
    epoch: int
    opening: object | None = None
    """Comes before anything else, once."""
    prefill: Prefill | None = None
    prompt_logprobs: Sequence[TokenLogprob] | None = None
    notices: list[object] = field(default_factory=list)
    choices: dict[int, ChoiceNews] = field(default_factory=dict)
    closing: object | None = None
    """Comes after anything else, once."""

    def wire_bytes(self) -> int:
        """An upper estimate."""
        size = _REQUEST_BYTES + sum(map(_logprob_bytes, self.prompt_logprobs or ()))
        for news in self.choices.values():
            size += _CHOICE_BYTES + _TOKEN_BYTES * len(news.ids) + _UTF8_BYTES * sum(map(len, news.texts))
            if news.logprobs:
                size += len(news.logprobs) * max(map(_logprob_bytes, news.logprobs))
        return size


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
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """Add tokens and the text they complete; they follow what is there."""
        if (news := self.of(request_id, epoch)) is not None:
            part = news.choices.get(choice)
            if part is None:
                part = news.choices[choice] = ChoiceNews(first_position)
            part.ids.extend(ids)
            part.texts.append(text)
            part.logprobs.extend(logprobs)

    def end(self, request_id: str, epoch: int, choice: int, end: ChoiceEnd) -> None:
        """End a choice; nothing is added behind it."""
        if (news := self.of(request_id, epoch)) is not None:
            part = news.choices.get(choice)
            if part is None:
                part = news.choices[choice] = ChoiceNews(end.position)
            part.end = end

    def drop(self, request_id: str) -> None:
        """Forget what is pending of a request."""
        self._news.pop(request_id, None)

    def take(self, max_bytes: int) -> list[RequestNews]:
        """Everything new up to about ``max_bytes``, at least one request's; it is no longer here afterwards."""
        taken: list[RequestNews] = []
        size = 0
        for news in self._news.values():
            if size >= max_bytes:
                break
            size += news.wire_bytes()
            taken.append(news)
        if len(taken) == len(self._news):
            self._news = {}
        else:
            for news in taken:
                del self._news[news.request_id]
        return taken


def _logprob_bytes(entry: TokenLogprob) -> int:
    return _LOGPROB_BYTES + _ALTERNATIVE_BYTES * len(entry.top_ids)
