"""Joins a conversation's blocks or items into the ring's messages, one per turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringline import Message

from services.gateway.media.pictures import Piece, content_of


@dataclass(slots=True)
class _Turn:
    role: str
    pieces: list[Piece] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    tool_call_id: str | None = None

    def message(self) -> Message:
        message: Message = {"role": self.role, "content": content_of(self.pieces, "\n")}
        if self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Turns:
    """Joins consecutive texts and pictures of the user, and an assistant's reasoning, texts and calls, into messages.

    System texts stay in place: the processor moves them if the model's chat template demands it.
    """

    def __init__(self) -> None:
        self._turns: list[_Turn] = []

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation in the ring's form."""
        return [turn.message() for turn in self._turns]

    def system(self, piece: Piece) -> None:
        """Add a text or picture of the system."""
        self._last("system").pieces.append(piece)

    def user(self, piece: Piece) -> None:
        """Add a text or picture of the user."""
        self._last("user").pieces.append(piece)

    def assistant(self, piece: Piece) -> None:
        """Add a text or picture of the assistant."""
        self._last("assistant").pieces.append(piece)

    def reasoning(self, text: str) -> None:
        """Add assistant reasoning."""
        self._last("assistant").reasoning.append(text)

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """Add an assistant's tool call."""
        self._last("assistant").calls.append({"id": call_id, "name": name, "arguments": replayed_arguments(arguments)})

    def result(self, call_id: str, *pieces: Piece) -> None:
        """Add a tool call's result."""
        self._turns.append(_Turn("tool", list(pieces), tool_call_id=call_id))

    def _last(self, role: str) -> _Turn:
        """The last turn if it has ``role``, else a new one."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]


def replayed_arguments(given: Any) -> Any:
    """A past call's arguments: whatever the model wrote; ``{}`` for nothing."""
    return "{}" if given is None or given == "" else given


def naming_turns(name_of: Callable[[str], str], conversation: str) -> Callable[[str], str]:
    """``name_of`` for an API that uses ``Turns``: the ring numbers messages differently, so name ``conversation``."""
    return lambda field: conversation if field.startswith(("chat.messages[", "messages[")) else name_of(field)
