"""Finds the formats that a chat template writes: by what it makes of a call, else by the words in it."""

from __future__ import annotations

import itertools
import json
from typing import Any

from text_core.parsing.argument_types import listed_types
from text_core.parsing.formats import NONE, REASONING_FORMATS, TOOL_FORMATS, make_parser
from text_core.parsing.parts import ParseOptions, PartWriter, ToolCallPiece
from text_core.parsing.reasoning_meter import ReasoningMeter

PROBED_NAME = "probed_call"
PROBED_ARGUMENTS: dict[str, Any] = {"a": "probed_argument", "l": ["x", 1], "n": 7}
"""A call to be shown; its name and texts occur in no template's own text. Keys are sorted, as by some templates."""
_SCHEMA = {"properties": {"a": {"type": "string"}, "l": {"type": "array"}, "n": {"type": "integer"}}}
_TYPES = tuple(listed_types({PROBED_NAME: _SCHEMA}, depth=0))


def reasoning_in(template: str) -> str:
    """Name of the format of reasoning in a template; ``none`` if it has none."""
    return next((name for name, form in REASONING_FORMATS.items() if form.is_in(template)), NONE)


def calls_in(template: str) -> str:
    """Name of the format of calls of which a template speaks, though it shows none; ``none`` without one."""
    marked = ((name, form) for name, form in TOOL_FORMATS.items() if not form.needs_names)
    return next((name for name, form in marked if form.is_in(template)), NONE)


def calls_shown(chat: str, prompt: str, template: str = "") -> str:
    """Name of the format of the probed call in a rendered chat; ``none`` if no format fits exactly.

    ``prompt``: the chat before the call, with what begins an answer. A call without markers counts only if the words of
    ``template`` speak of no format with markers.
    """
    answer = chat[len(before_answer(chat, prompt)) :]
    for name, form in TOOL_FORMATS.items():
        opened = prompt.endswith(form.opened_by) or answer.startswith(form.opened_by)
        if opened and (form.needs_names or form.is_in(answer)) and _is_read_by(name, answer):
            words = calls_in(template) if form.needs_names else NONE
            return name if words == NONE else words
    # Python's calls are shown with values that are not Python's: texts without quotes, or all in quotes
    return "pythonic" if answer.lstrip().startswith(f"[{PROBED_NAME}(") else NONE


def before_answer(chat: str, prompt: str) -> str:
    """What comes before the last message in a rendered chat; ``prompt`` as in ``calls_shown``."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chat, prompt, strict=False))
    before = chat[: sum(1 for _ in same)]
    if before != prompt:  # what follows differs, perhaps within a marker
        before = before[: max(before.rfind(end) for end in "\n>]") + 1]
    return before


def _is_read_by(name: str, answer: str) -> bool:
    reasoning = name if name in REASONING_FORMATS and TOOL_FORMATS[name].grammar_has_reasoning else NONE
    options = ParseOptions(name, reasoning, tool_names=(PROBED_NAME,), argument_types=_TYPES)
    writer = PartWriter(str)
    parser = make_parser(options, writer, ReasoningMeter())
    parser.feed(answer, 0)
    parser.finish()
    pieces = [part for part in writer.take() if isinstance(part, ToolCallPiece)]
    arguments: list[str] = []
    for piece in pieces:
        if piece.name not in ("", PROBED_NAME):
            return False
        arguments += [""] if piece.name else []
        arguments[-1] += piece.arguments
    try:  # a template may show it twice, as MiniCPM5's does
        return bool(arguments) and all(json.loads(each) == PROBED_ARGUMENTS for each in arguments)
    except ValueError:
        return False
