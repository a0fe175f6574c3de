"""The typed parts of an answer: content, reasoning and tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


class ParseError(ValueError):
    """An answer, or a tool call's arguments, cannot be read as JSON. The text remains available."""


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str
    tokens: tuple[int, ...] = ()
    """Positions, in the choice, of the tokens of ``text``; only with ``parse={"content_tokens": True}``."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call."""

    index: int
    """Number of the call in its choice, from 0."""
    id: str
    """Like ``name``, empty except in the call's first piece."""
    name: str
    arguments: str
    """The next piece of the arguments' JSON text."""


Part = Content | Reasoning | ToolCallPiece


class Joints:
    """Puts a line break between runs of content, or of reasoning, that another kind of part separates.

    Without it, the text before a tool call would run into the text after it.
    """

    def __init__(self) -> None:
        self._last: type[Part] | None = None
        self._ends: dict[type[Part], str] = {}
        """The last character so far of the content and of the reasoning."""

    def joined(self, parts: Iterable[Part]) -> list[Part]:
        """The next parts of one choice, with line breaks where needed."""
        joined: list[Part] = []
        for part in parts:
            kind = type(part)
            if not isinstance(part, ToolCallPiece) and part.text:
                end = self._ends.get(kind, "\n")
                self._ends[kind] = part.text[-1]
                if kind is not self._last and not end.isspace() and not part.text[0].isspace():
                    part = replace(part, text="\n" + part.text)
            self._last = kind
            joined.append(part)
        return joined


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model."""

    id: str
    """The ``tool_call_id`` of the message that answers this call."""
    name: str
    arguments: str
    """JSON text of an object, as the model wrote it."""

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments. Raises ParseError if they are not a JSON object: cut off, or not constrained by a schema."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"the arguments of {self.name!r} are not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ParseError(f"the arguments of {self.name!r} are not a JSON object")
        return value
