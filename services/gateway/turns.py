"""Turns of a conversation, as APIs tell them block by block or item by item, to the ring's messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringline import Message


@dataclass(slots=True)
class _Turn:
    role: str
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    tool_call_id: str | None = None

    def message(self) -> Message:
        message: Message = {"role": self.role, "content": "\n".join(self.texts)}
        if self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Turns:
    """Gathers what belongs to one message: texts of the user, and an assistant's reasoning, text and calls.

    A system's text stays where it is: the processor moves it if the model's chat template does not take it there.
    """

    def __init__(self) -> None:
        self._turns: list[_Turn] = []

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation as the ring takes it."""
        return [turn.message() for turn in self._turns]

    def system(self, text: str) -> None:
        """Add a text of the system."""
        self._last("system").texts.append(text)

    def user(self, text: str) -> None:
        """Add a text of the user."""
        self._last("user").texts.append(text)

    def assistant(self, text: str) -> None:
        """Add a text of the assistant."""
        self._last("assistant").texts.append(text)

    def reasoning(self, text: str) -> None:
        """Add reasoning of the assistant."""
        self._last("assistant").reasoning.append(text)

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """Add a call of a tool."""
        self._last("assistant").calls.append({"id": call_id, "name": name, "arguments": replayed_arguments(arguments)})

    def result(self, call_id: str, text: str) -> None:
        """Add the result of a call."""
        self._turns.append(_Turn("tool", [text], tool_call_id=call_id))

    def _last(self, role: str) -> _Turn:
        """The last turn if it is of ``role``, else a new one."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]


def replayed_arguments(given: Any) -> Any:
    """The arguments of a call in the conversation: whatever the model wrote, for it is history; nothing is ``{}``."""
    return "{}" if given is None or given == "" else given


def naming_turns(name_of: Callable[[str], str], conversation: str) -> Callable[[str], str]:
    """``name_of`` for an API whose ``conversation`` is told in ``Turns``: the ring's messages have other numbers."""
    return lambda field: conversation if field.startswith(("chat.messages[", "messages[")) else name_of(field)
