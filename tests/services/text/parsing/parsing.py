"""Parses texts for tests."""

from __future__ import annotations

from collections.abc import Iterable

from services.text.parsing.formats import call_ids, make_parser, marker_texts
from services.text.parsing.marks import mark
from services.text.parsing.parts import Content, ParseOptions, Part, PartWriter, Reasoning, ToolCallPiece
from services.text.parsing.reasoning_meter import ReasoningMeter


def merged(parts: Iterable[Part]) -> list[Part]:
    """The parts, with pieces that continue each other joined."""
    whole: list[Part] = []
    for part in parts:
        before = whole[-1] if whole else None
        if isinstance(part, ToolCallPiece) and isinstance(before, ToolCallPiece) and not part.id:
            assert part.index == before.index
            whole[-1] = ToolCallPiece(before.index, before.id, before.name, before.arguments + part.arguments)
        elif isinstance(part, Content) and isinstance(before, Content):
            whole[-1] = Content(before.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(before, Reasoning):
            whole[-1] = Reasoning(before.text + part.text)
        else:
            whole.append(part)
    return whole
