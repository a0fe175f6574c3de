"""Turns of a conversation, as APIs tell them block by block or item by item, to the ring's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringline import Message


class Turns:
    """Gathers what belongs to one message: texts of the user, and an assistant's reasoning, text and calls.

    A system's text that does not come first becomes a part of the user's turn: most chat templates refuse it elsewhere,
    and agents remind the model of something in every turn.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def system(self, text: str) -> None:
        """Add a text of the system."""
        leading = not self.messages or self.messages[-1]["role"] == "system"
        _add_text(self._last("system" if leading else "user"), text)

    def user(self, text: str) -> None:
        """Add a text of the user."""
        _add_text(self._last("user"), text)

    def assistant(self, text: str) -> None:
        """Add a text of the assistant."""
        _add_text(self._last("assistant"), text)

    def reasoning(self, text: str) -> None:
        """Add reasoning of the assistant."""
        message = self._last("assistant")
        message["reasoning"] = "\n".join(filter(None, (message.get("reasoning"), text)))

    def call(self, call_id: str, name: str, arguments: str | Mapping[str, Any]) -> None:
        """Add a call of a tool; ``arguments``: a JSON object."""
        call: dict[str, Any] = {"id": call_id, "name": name, "arguments": arguments}
        message = self._last("assistant")
        message["tool_calls"] = [*(message.get("tool_calls") or ()), call]  # type: ignore[list-item]

    def result(self, call_id: str, text: str) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _last(self, role: str) -> Message:
        """The last message if it is of ``role``, else a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]


def _add_text(message: Message, text: str) -> None:
    message["content"] = [*(message["content"] or ()), {"type": "text", "text": text}]
