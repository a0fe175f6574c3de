"""The parts of an answer, put together as they come, and which of its calls count."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from ringline import FinishReason, Part, ToolCall, ToolCallPiece


def kind_of(part: Part) -> type[Part] | int:
    """What pieces of one run have in common: their type, of calls the number."""
    return part.index if isinstance(part, ToolCallPiece) else type(part)


class Run:
    """Pieces of one kind that follow each other."""

    def __init__(self, first: Part) -> None:
        self.first = first
        self.kind = kind_of(first)
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        """All pieces added."""
        return "".join(self.texts)


def runs_of(parts: Iterable[Part]) -> list[Run]:
    """The runs of an answer in their order."""
    runs: list[Run] = []
    for part in parts:
        if not runs or runs[-1].kind != kind_of(part):
            runs.append(Run(part))
        runs[-1].texts.append(part.arguments if isinstance(part, ToolCallPiece) else part.text)
    return runs


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_whole(arguments: str) -> bool:
    """Whether a call's arguments are the whole of an object."""
    try:
        _OBJECT.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def is_to_be_made(arguments: str, reason: FinishReason | None) -> bool:
    """Whether a call of an answer that ended for ``reason`` is one to be made, or to be shown as far as it came.

    A stop within a call ends the answer, not the call: nobody may make it. Clients know what ``max_tokens`` cuts.
    """
    return reason is not FinishReason.STOP or is_whole(arguments)


def calls_to_be_made(calls: Iterable[ToolCall], reason: FinishReason | None) -> list[ToolCall]:
    """Those of a choice."""
    return [call for call in calls if is_to_be_made(call.arguments, reason)]


class StreamedCalls:
    """The calls of one choice as their pieces come: whether one of them is to be made."""

    def __init__(self) -> None:
        self._pieces: list[str] | None = None
        """Arguments of the last call; None without calls."""
        self._any_whole = False

    def add(self, piece: ToolCallPiece) -> None:
        """Take the next piece."""
        if self._pieces is None or piece.name:
            self._settle()
            self._pieces = []
        self._pieces.append(piece.arguments)

    def any_to_be_made(self, reason: FinishReason | None) -> bool:
        """Once the choice has ended."""
        self._settle()
        return self._any_whole or (self._pieces is not None and reason is not FinishReason.STOP)

    def _settle(self) -> None:
        """Find out whether the last call is whole, unless one is."""
        self._any_whole = self._any_whole or (self._pieces is not None and is_whole("".join(self._pieces)))
