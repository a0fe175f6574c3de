"""What a client saw of one request, and its defects compared with the right answer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ringline import (
    Adapter,
    Admitted,
    Delta,
    Event,
    Finished,
    FinishReason,
    Part,
    PromptLogprobs,
    Resumed,
    Started,
    ToolCallPiece,
    Usage,
)


class Defect(StrEnum):
    """Ways in which an answer can be wrong."""

    LOST = "lost"
    """The request failed, or tokens are missing."""
    DUPLICATED = "duplicated"
    """Tokens were delivered twice."""
    ALTERED = "altered"
    """Tokens, text, typed parts, log probabilities or ends differ."""
    WRONG_USAGE = "wrong usage"
    STUCK = "stuck"
    """It did not end in time."""


@dataclass
class Answer:
    """Of one choice."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    parts: str = ""
    """The typed parts, written one after the other: how they were cut into pieces is not seen."""
    logprobs: list[object] = field(default_factory=list)
    end: tuple[FinishReason, int | str | None, float | None] | None = None
    """Its reason, what stopped it, and the score of its beam."""
    part_kind: str = ""
    """What the last piece is of."""

    def add_part(self, piece: Part) -> None:
        """Write the next piece of the typed parts."""
        text = piece.arguments if isinstance(piece, ToolCallPiece) else piece.text
        kind = f"call {piece.index}" if isinstance(piece, ToolCallPiece) else type(piece).__name__
        if kind != self.part_kind:
            self.part_kind = kind
            named = f" {piece.id} {piece.name}" if isinstance(piece, ToolCallPiece) else ""
            self.parts += f"\n[{kind}{named}] "
        self.parts += text


@dataclass(frozen=True)
class Pause:
    """A gap in which the request moved, and why."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Gap:
    """Between two deltas of a request, on the monotonic clock."""

    begun: float
    ended: float
    announced: bool
    """Whether the client received Started in it: the request moved."""

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


MIN_GAP = 0.02
"""Seconds. Shorter gaps are not recorded."""


@dataclass
class Outcome:
    """Everything that a client saw of one request."""

    choices: dict[int, Answer] = field(default_factory=dict)
    prompt_logprobs: list[object] = field(default_factory=list)
    usage: Usage | None = None
    error: str = ""
    """Text of the error."""
    reason: str | None = None
    """The error's reason in the contract."""
    failed: float = math.inf
    """Monotonic time of the error."""
    adapter: Adapter | None = None
    """What was computed beside the model: what the request was admitted with, or began anew with before any output."""
    models: list[str] = field(default_factory=list)
    """Digests of the models that computed it, in order, without repeats."""
    numerics: list[str] = field(default_factory=list)
    """Those of the engines, in the same way."""
    stuck: bool = False
    broken: list[str] = field(default_factory=list)
    """Violations of the stream's protocol."""
    pauses: list[Pause] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    moved: int = 0
    not_identical: int = 0
    resumed: int = 0
    """How often the client resumed at another processor."""
    first_token: float | None = None
    """Seconds from the start."""
    longest_gap: float = 0.0
    """Seconds between two deltas of any choices."""
    began: float = field(default_factory=time.monotonic)
    _last_delta: float = field(default_factory=time.monotonic)
    _reason: str | None = None

    @property
    def num_ids(self) -> int:
        return sum(len(answer.ids) for answer in self.choices.values())

    def add(self, event: Event) -> None:
        match event:
            case Delta():
                self._delta(event)
            case Finished():
                answer = self.choices.setdefault(event.choice, Answer())
                if answer.end is not None:
                    self.broken.append(f"choice {event.choice} ended twice")
                answer.end = (event.reason, event.stop, event.beam_score)
            case PromptLogprobs():
                if event.offset != len(self.prompt_logprobs):
                    self.broken.append(f"log probabilities of the prompt from {event.offset}")
                self.prompt_logprobs += event.logprobs
            case Started():
                if event.model_digest not in self.models:
                    self.models.append(event.model_digest)
                if event.numerics not in self.numerics:
                    self.numerics.append(event.numerics)
                self.moved += bool(event.reason)
                self.not_identical += not event.identical
                self._reason = event.reason or None
            case Resumed():
                self.resumed += 1
            case Admitted():
                self._last_delta = time.monotonic()

    def without_error(self) -> Outcome:
        return replace(self, error="", reason=None)

    def _delta(self, delta: Delta) -> None:
        now = time.monotonic()
        if self.first_token is None:
            self.first_token = now - self.began
        else:
            self.longest_gap = max(self.longest_gap, now - self._last_delta)
            if self._reason is not None or now - self._last_delta >= MIN_GAP:
                self.gaps.append(Gap(self._last_delta, now, self._reason is not None))
        if self._reason is not None:
            self.pauses.append(Pause(now - self._last_delta, self._reason))
            self._reason = None
        self._last_delta = now
        answer = self.choices.setdefault(delta.choice, Answer())
        if delta.position != len(answer.ids):
            word = "again" if delta.position < len(answer.ids) else "too far on"
            self.broken.append(f"position {delta.position} {word}, at {len(answer.ids)}")
        if answer.end is not None:
            self.broken.append(f"choice {delta.choice} went on behind its end")
        answer.ids += delta.token_ids
        answer.text += delta.text
        answer.logprobs += delta.logprobs or ()
        for piece in delta.parts:
            answer.add_part(piece)


def find_defects(outcome: Outcome, right: Outcome, *, cancelled: bool) -> dict[Defect, str]:
    """Defects of ``outcome`` in words. A request that the client cancelled may end anywhere."""
    found: dict[Defect, str] = {}
    if outcome.stuck:
        found[Defect.STUCK] = "no end in time"
    if outcome.error:
        found[Defect.LOST] = outcome.error
    for rule in outcome.broken:
        found[Defect.DUPLICATED if "again" in rule or "twice" in rule else Defect.LOST] = rule
    partial = cancelled or bool(found)
    for choice, expected in right.choices.items():
        _compare(choice, outcome.choices.get(choice, Answer()), expected, partial, found)
    for choice in outcome.choices.keys() - right.choices.keys():
        found[Defect.ALTERED] = f"choice {choice} was not asked for"
    if not partial and outcome.prompt_logprobs != right.prompt_logprobs:
        found[Defect.ALTERED] = "the prompt has other log probabilities"
    if not partial and _without_cached(outcome.usage) != _without_cached(right.usage):
        found[Defect.WRONG_USAGE] = f"{outcome.usage} instead of {right.usage}"
    return found


def _compare(choice: int, answer: Answer, expected: Answer, partial: bool, found: dict[Defect, str]) -> None:
    count = len(answer.ids)
    if answer.ids != expected.ids[:count]:
        at = next((i for i, pair in enumerate(zip(answer.ids, expected.ids, strict=False)) if pair[0] != pair[1]), None)
        if at is None:
            found[Defect.DUPLICATED] = f"choice {choice} has {count} tokens instead of {len(expected.ids)}"
        else:
            found[Defect.ALTERED] = f"choice {choice} differs from token {at} on"
    elif answer.logprobs != expected.logprobs[: len(answer.logprobs)]:
        found[Defect.ALTERED] = f"choice {choice} has other log probabilities"
    elif partial:
        if not expected.text.startswith(answer.text):
            found[Defect.ALTERED] = f"choice {choice} has other text"
        elif not expected.parts.startswith(answer.parts):
            found[Defect.ALTERED] = f"choice {choice} has other parts"
    elif count < len(expected.ids):
        found[Defect.LOST] = f"choice {choice} has {count} tokens instead of {len(expected.ids)}"
    elif len(answer.logprobs) != len(expected.logprobs):
        found[Defect.LOST] = f"choice {choice} lacks log probabilities"
    elif answer.text != expected.text:
        found[Defect.ALTERED] = f"choice {choice} has other text"
    elif answer.parts != expected.parts:
        found[Defect.ALTERED] = f"choice {choice} has other parts"
    elif answer.end != expected.end:
        found[Defect.ALTERED] = f"choice {choice} ended with {answer.end} instead of {expected.end}"


def _without_cached(usage: Usage | None) -> tuple[int, int, int] | None:
    """The number of cached tokens depends on where the request went first."""
    return None if usage is None else (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens)
