"""Joins an answer's parts into runs, and decides which tool calls clients should make."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from ringline import FinishReason, Part, ToolCall, ToolCallPiece


def kind_of(part: Part) -> type[Part] | int:
    """What the pieces of a run share: their type, or a call's index."""
    return part.index if isinstance(part, ToolCallPiece) else type(part)


class Run:
    """Consecutive pieces of one kind."""

    def __init__(self, first: Part) -> None:
        self.first = first
        self.kind = kind_of(first)
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        """All pieces joined."""
        return "".join(self.texts)


def runs_of(parts: Iterable[Part]) -> list[Run]:
    """An answer's runs, in order."""
    runs: list[Run] = []
    for part in parts:
        if not runs or runs[-1].kind != kind_of(part):
            runs.append(Run(part))
        runs[-1].texts.append(part.arguments if isinstance(part, ToolCallPiece) else part.text)
    return runs


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_whole(arguments: str) -> bool:
    """Whether a call's arguments are a complete JSON object."""
    try:
        _OBJECT.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def is_to_be_made(arguments: str, reason: FinishReason | None) -> bool:
    """Whether to report a call of an answer that ended for ``reason``.

    A stop within a call leaves it incomplete, and nobody may make it. Clients can tell a call that ``max_tokens`` cut.
    """
    return reason is not FinishReason.STOP or is_whole(arguments)


def calls_to_be_made(calls: Iterable[ToolCall], reason: FinishReason | None) -> list[ToolCall]:
    """A choice's calls to report."""
    return [call for call in calls if is_to_be_made(call.arguments, reason)]


class StreamedCalls:
    """Follows the streamed calls of one choice: whether any is to be made."""

    def __init__(self) -> None:
        self._pieces: list[str] | None = None
        """Arguments of the last call; None without calls."""
        self._any_whole = False

    def add(self, piece: ToolCallPiece) -> None:
        if self._pieces is None or piece.name:
            self._settle()
            self._pieces = []
        self._pieces.append(piece.arguments)

    def any_to_be_made(self, reason: FinishReason | None) -> bool:
        """Call once the choice has ended."""
        self._settle()
        return self._any_whole or (self._pieces is not None and reason is not FinishReason.STOP)

    def _settle(self) -> None:
        """Check whether the last call is whole, unless an earlier one is."""
        self._any_whole = self._any_whole or (self._pieces is not None and is_whole("".join(self._pieces)))
