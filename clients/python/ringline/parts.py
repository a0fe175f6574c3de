"""The typed parts of an answer: content, reasoning, and calls of tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class ParseError(ValueError):
    """An answer, or the arguments of a call, cannot be read as JSON. Its text is still there."""


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a call of a tool."""

    index: int
    """Number of the call in its choice, from 0."""
    id: str
    """Empty in all but the call's first piece, and so is ``name``."""
    name: str
    arguments: str
    """The next piece of the JSON text of the arguments."""


Part = Content | Reasoning | ToolCallPiece


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model."""

    id: str
    """For the ``tool_call_id`` of the message that answers it."""
    name: str
    arguments: str
    """JSON text of an object, as the model wrote it."""

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments. Raises ParseError if they are no JSON object: cut off, or not held to a schema."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"the arguments of {self.name!r} are not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ParseError(f"the arguments of {self.name!r} are no JSON object")
        return value
