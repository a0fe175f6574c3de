"""The results of ``LLM``, with vLLM's names: a ``RequestOutput`` for each prompt, with a ``CompletionOutput`` for each
of its choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from engine_core.logprobs import Logprobs, TokenLogprobs
from engine_core.request import Finish


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of a token at one position."""

    logprob: float
    """Of the log-softmax of the raw logits, without temperature."""
    rank: int
    """1 is the most likely token."""
    decoded_token: str | None = None
    """The text that the token adds; None if the result has no text."""


class PositionLogprobs(Mapping[int, Logprob]):
    """The log probabilities at one position by token id: of the token there, then of the likeliest ones.

    Its attributes are those of ``TokenLogprobs``.
    """

    __slots__ = ("_entry", "_texts", "token_id")

    def __init__(self, token_id: int, entry: TokenLogprobs, texts: Mapping[int, str] | None) -> None:
        """``entry`` is of ``token_id``, the token at the position; ``texts`` has those of all its tokens."""
        self.token_id = token_id
        self._entry = entry
        self._texts = texts

    @property
    def logprob(self) -> float:
        """Of the token at the position."""
        return self._entry.logprob

    @property
    def rank(self) -> int:
        """Of the token at the position; 1 is the most likely."""
        return self._entry.rank

    @property
    def top_ids(self) -> tuple[int, ...]:
        """As in ``TokenLogprobs``."""
        return self._entry.top_ids

    @property
    def top_logprobs(self) -> tuple[float, ...]:
        """As in ``TokenLogprobs``."""
        return self._entry.top_logprobs

    def __getitem__(self, token_id: int) -> Logprob:
        entry, text = self._entry, None if self._texts is None else self._texts.get(token_id)
        if token_id == self.token_id:
            return Logprob(entry.logprob, entry.rank, text)
        try:
            place = entry.top_ids.index(token_id)
        except ValueError:
            raise KeyError(token_id) from None
        return Logprob(entry.top_logprobs[place], place + 1, text)

    def __iter__(self) -> Iterator[int]:
        yield self.token_id
        yield from (token_id for token_id in self._entry.top_ids if token_id != self.token_id)

    def __len__(self) -> int:
        return len(self._entry.top_ids) + (self.token_id not in self._entry.top_ids)

    def __repr__(self) -> str:
        return repr(dict(self))


class OutputLogprobs(Logprobs):
    """Log probabilities of tokens whose ids are known: what is read by position has them by token id."""

    __slots__ = ("_texts", "_token_ids")

    def __init__(self, packed: Logprobs, token_ids: Sequence[int], texts: Mapping[int, str] | None = None) -> None:
        """Keeps the arrays of ``packed``; ``texts`` has the text of every token in them, if there is any."""
        super().__init__(packed.top_count, packed.logprobs, packed.ranks, packed.top_ids, packed.top_logprobs)
        self._token_ids = token_ids
        self._texts = texts

    def with_texts(self, token_ids: Sequence[int], text_of: Callable[[int], str]) -> OutputLogprobs:
        """The same of ``token_ids``, with the texts of all tokens."""
        return OutputLogprobs(self, token_ids, {each: text_of(each) for each in {*token_ids, *self.top_ids}})

    @overload  # type: ignore[override]  # an entry has the attributes of ``TokenLogprobs``, but is no tuple
    def __getitem__(self, index: int) -> PositionLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> OutputLogprobs: ...

    def __getitem__(self, index: int | slice) -> PositionLogprobs | OutputLogprobs:
        if isinstance(index, slice):
            return OutputLogprobs(super().__getitem__(index), self._token_ids[index], self._texts)
        return PositionLogprobs(self._token_ids[index], super().__getitem__(index), self._texts)

    def __iter__(self) -> Iterator[PositionLogprobs]:  # type: ignore[override]
        return (self[index] for index in range(len(self)))


class Arrival(NamedTuple):
    """When a call was made, in seconds."""

    time: float
    """Since 1970 (``time.time``)."""
    ts: float
    """Of ``time.monotonic``."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds. Names that end with ``_ts`` are times of ``time.monotonic``."""

    arrival_time: float
    """When the call was made, since 1970 (``time.time``)."""
    arrival_ts: float
    """The same moment."""
    queued_ts: float
    """When the engine took it: at once, or when its queue had room."""
    scheduled_ts: float
    """When the first step began that computes it."""
    first_token_ts: float | None
    """When its first token was there; None if it has none."""
    last_token_ts: float | None
    finished_ts: float
    """When its last choice ended."""

    @property
    def queued_time(self) -> float:
        """Seconds that it waited in the engine's queue."""
        return self.scheduled_ts - self.queued_ts

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from the call to the first token; None if there is none."""
        return None if self.first_token_ts is None else self.first_token_ts - self.arrival_ts

    @property
    def e2e_latency(self) -> float:
        """Seconds from the call to the end."""
        return self.finished_ts - self.arrival_ts


@dataclass(slots=True)
class CompletionOutput:
    """One choice of one prompt."""

    token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    """The text of the ids; None if the prompt was ids, and no stop string was given."""
    logprobs: OutputLogprobs | None = None
    """One per token, if requested: ``logprobs[0][token_id].logprob``."""
    finish: Finish | None = None
    """Why it ended; set on every choice that ``generate`` returns."""
    stop_reason: int | str | None = None
    """The stop string, or the one of ``stop_token_ids``, that ended it; None for eos and other ends."""
    index: int = 0
    """Its number among the choices of the prompt."""
    beam_score: float | None = None
    """Its score, if a beam search found it."""

    @property
    def finish_reason(self) -> str | None:
        """Such as "stop" or "length"; of an "error", ``finish.error`` says more."""
        return None if self.finish is None else self.finish.finish_reason.value

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' log probabilities, if these were requested."""
        return None if self.logprobs is None else math.fsum(self.logprobs.logprobs)

    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish is not None

    @property
    def stop(self) -> int | str | None:
        """``stop_reason``, or the eos token that ended it."""
        eos = None if self.finish is None else self.finish.stop_token_id
        return eos if self.stop_reason is None else self.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """All choices of one prompt. Equal if what was computed is, whenever that was."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """``n`` of its parameters, by choice; with ``best_of`` or a beam search the best first."""
    prompt: str | None = None
    """The prompt, if it was text."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    prompt_logprobs: OutputLogprobs | None = None
    """For prompt tokens 1…, if requested: the first entry is that of the second token."""
    request_id: str = field(default="", compare=False)
    metrics: RequestMetrics | None = field(default=None, compare=False)
    """Set on every result that ``generate`` returns."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(output.finished() for output in self.outputs)

    @property
    def choices(self) -> list[CompletionOutput]:
        """``outputs``, by its older name."""
        return self.outputs

    @property
    def cached_tokens(self) -> int:
        """``num_cached_tokens``, by its older name."""
        return self.num_cached_tokens
