"""Answers of the ring for tests of what the gateway makes of them, and server-sent events as objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from ringline import Content, Delta, Event, Finished, FinishReason, Part, Reasoning, ToolCallPiece


def deltas(*parts: Part) -> list[Event]:
    """A delta for each part."""
    return [Delta(0, position, "", (1,), None, (part,)) for position, part in enumerate(parts)]


def finished(reason: FinishReason = FinishReason.STOP, stop: int | str | None = 2) -> Finished:
    """The end of the choice."""
    return Finished(0, reason, stop, None)


@st.composite
def answers(draw: st.DrawFn) -> list[Part]:
    """Parts in any order; the pieces of a call follow each other, and the first has its name. A call may be cut."""
    parts: list[Part] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call"]), max_size=6)):
        texts = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3))
        if kind == "call":
            parts.append(ToolCallPiece(calls, f"call_{calls}", "look", ""))
            arguments, at = json.dumps({"a": texts}), draw(st.integers(0, 5))
            if draw(st.booleans()):
                arguments = arguments[:-1]
            parts += [ToolCallPiece(calls, "", "", text) for text in (arguments[:at], arguments[at:])]
            calls += 1
        else:
            parts += [Content(text) if kind == "content" else Reasoning(text) for text in texts]
    return parts


def blocks(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """What an answer consists of: each run of one kind with its text, each call on its own."""
    runs: list[tuple[str, str]] = []
    last: object = None
    for part in parts:
        kind = part.index if isinstance(part, ToolCallPiece) else type(part)
        text = part.arguments if isinstance(part, ToolCallPiece) else part.text
        if kind == last:
            runs[-1] = (runs[-1][0], runs[-1][1] + text)
        else:
            runs.append(("call" if isinstance(part, ToolCallPiece) else type(part).__name__.lower(), text))
        last = kind
    return runs


def events_in(written: bytes) -> list[dict[str, Any]]:
    """The data of events, whose names must be their types."""
    events = []
    for block in written.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def is_call(block: tuple[str, str]) -> bool:
    """Whether it is a call that is whole."""
    return block[0] == "call" and block[1].endswith("}")
