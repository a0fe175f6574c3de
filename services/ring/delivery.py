"""The delivery state of one request: its epoch, the ids of each choice, which frames fit, and its ends.

The processor owns a request from admission to its end. Frames of a lower epoch are dropped, a delta must begin where
the previous one ended, nothing follows the end of a choice, and usage counts exactly what was delivered.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping, Sequence

from services.ring.errors import Status
from services.ring.events import ChoiceEnd, FinishReason, Fit, TypedParts, fit


class Verdict(enum.Enum):
    """What to do with a frame about a choice."""

    ACCEPT = "accept"
    DROP = "drop"
    """Late, duplicate, or after the end of its choice."""
    REPLAY = "replay"
    """It does not continue what was delivered: ask for a replay."""


class ChoiceDelivery:
    """The part of one choice that the client has received."""

    __slots__ = ("end", "ids", "reasoning_tokens")

    def __init__(self, resumed_ids: Sequence[int] = ()) -> None:
        self.ids = array("I", resumed_ids)
        self.end: ChoiceEnd | None = None
        self.reasoning_tokens: int | None = None
        """Those reported so far; None if the answer is not divided into parts, or nothing came yet."""


class Delivery:
    """The delivery state of one request, over all its choices."""

    def __init__(self, choices: Mapping[int, Sequence[int]]) -> None:
        """``choices`` maps each unfinished choice to the ids it was resumed with."""
        self.cached_tokens: int | None = None
        """Cached prompt tokens at the first admission; None until the engine has reported them."""
        self.epoch = 0
        self.replays = 0
        """Replays requested since the last accepted delta, because frames did not continue what was delivered."""
        self.choices = {choice: ChoiceDelivery(ids) for choice, ids in choices.items()}
        self.num_unfinished = len(self.choices)
        """Choices that have not ended."""
        self.is_cut_short = False
        """Whether choices were ended here, and not by their engine, which may go on with them."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self.num_unfinished == 0

    @property
    def is_computed(self) -> bool:
        """Whether the engine has ended every choice: it computes nothing more."""
        return self.finished and not self.is_cut_short

    @property
    def completion_tokens(self) -> int:
        """Output tokens delivered, over all choices; resumed ones count."""
        return sum(len(state.ids) for state in self.choices.values())

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning tokens among the output tokens, as far as detokenizers have reported them."""
        return sum(state.reasoning_tokens or 0 for state in self.choices.values())

    @property
    def accepted_drafts(self) -> int:
        """Of the output tokens, those that the engines on which choices ended had guessed ahead."""
        ends = ((state.end, len(state.ids)) for state in self.choices.values())
        return sum(min(end.drafts[0], count) for end, count in ends if end is not None)

    @property
    def rejected_drafts(self) -> int:
        """Tokens that these engines had guessed wrong."""
        return sum(state.end.drafts[1] for state in self.choices.values() if state.end is not None)

    def next_epoch(self) -> int:
        """Begin a new epoch, for a Submit or a Redirect: frames of earlier ones are dropped from now on."""
        self.epoch += 1
        return self.epoch

    def unfinished(self) -> dict[int, array[int]]:
        """The ids of each unfinished choice, as a resubmission carries them."""
        return {choice: state.ids for choice, state in self.choices.items() if state.end is None}

    def delivered(self) -> dict[int, int]:
        """The number of ids of each unfinished choice, as a Redirect carries them."""
        return {choice: len(ids) for choice, ids in self.unfinished().items()}

    def delta(
        self, epoch: int, choice: int, first_position: int, ids: Sequence[int], parts: TypedParts | None = None
    ) -> Verdict:
        """Judge a delta; if accepted, keep its ids and its count of reasoning tokens."""
        state = self._unfinished_choice(epoch, choice)
        if state is None:
            return Verdict.DROP
        match fit(first_position, len(ids), len(state.ids)):
            case Fit.NEXT:
                state.ids.extend(ids)
                if parts is not None:
                    state.reasoning_tokens = parts.reasoning_tokens
                self.replays = 0
                return Verdict.ACCEPT
            case Fit.OLD:
                return Verdict.DROP
            case _:
                return Verdict.REPLAY

    def end(self, epoch: int, choice: int, end: ChoiceEnd) -> Verdict:
        """Judge the end of a choice; it must come right after the last id."""
        state = self._unfinished_choice(epoch, choice)
        if state is None:
            return Verdict.DROP
        if end.position != len(state.ids):
            return Verdict.REPLAY
        state.end = end
        self.num_unfinished -= 1
        if end.parts is not None:
            state.reasoning_tokens = end.parts.reasoning_tokens
        return Verdict.ACCEPT

    def abort(self, finish_reason: FinishReason, error: Status | None = None) -> dict[int, ChoiceEnd]:
        """End every unfinished choice at its delivered length; later frames are dropped."""
        ends = {}
        for choice, state in self.choices.items():
            if state.end is None:
                reasoning = state.reasoning_tokens
                parts = None if reasoning is None else TypedParts(reasoning_tokens=reasoning)
                state.end = ends[choice] = ChoiceEnd(finish_reason, len(state.ids), error=error, parts=parts)
        self.num_unfinished = 0
        self.is_cut_short |= bool(ends)
        return ends

    def _unfinished_choice(self, epoch: int, choice: int) -> ChoiceDelivery | None:
        state = self.choices.get(choice)
        return state if epoch == self.epoch and state is not None and state.end is None else None
