"""Calls as Kimi K3 writes them: elements between three special tokens, each value with its type.

An element is ``<|open|>call tool="f" index="1"<|sep|>`` … ``<|close|>call<|sep|>``. An answer's text is an
element, too, even an empty one: its end comes before the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from text_core.grammar.lark import FREE_TEXT
from text_core.parsing.argument_types import JsonType, Types
from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar
from text_core.parsing.tool_grammar import Marker, ToolSpec

_OPEN, _CLOSE, _SEPARATOR = MARKERS = ("<|open|>", "<|close|>", "<|sep|>")
_TYPES: dict[str, Types] = {
    "string": frozenset({JsonType.STRING}),
    "number": frozenset({JsonType.NUMBER, JsonType.INTEGER}),
    "boolean": frozenset({JsonType.BOOLEAN}),
    "null": frozenset({JsonType.NULL}),
    "object": frozenset({JsonType.OBJECT}),
    "array": frozenset({JsonType.ARRAY}),
}
TAGS = Tags(
    begin=(f"{_OPEN}tools{_SEPARATOR}",),
    end=(f"{_CLOSE}tools{_SEPARATOR}",),
    name=(f'{_OPEN}call tool="', '"'),
    number=(' index="', f'"{_SEPARATOR}'),
    call_end=f"{_CLOSE}call{_SEPARATOR}",
    key=(f'{_OPEN}argument key="', '" type="'),
    value=tuple((f'{name}"{_SEPARATOR}', types) for name, types in _TYPES.items()),
    value_end=f"{_CLOSE}argument{_SEPARATOR}",
    markers=MARKERS,
    several=True,
    before=f"{_CLOSE}response{_SEPARATOR}",
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _OPEN in template and ('call tool="' in template or "open_tag('call'" in template)


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    before = marker(TAGS.before)
    in_tokens = not required and before.startswith("<")  # which free text does not have
    own = tagged_grammar(
        TAGS, tools, required=required or in_tokens, single=single, marker=marker, format_name="kimi_k3"
    )
    start, _, rules = own.partition("\n")
    calls = start.removeprefix("start: ")
    if in_tokens:
        return f"start: ANSWER ({before} ({calls})?)?\nANSWER: {FREE_TEXT}\n{rules}"
    return f"start: ({before})? {calls}\n{rules}" if required else own


TOOL_FORMAT = ToolFormat(partial(TaggedCallParser, tags=TAGS), MARKERS, is_in, grammar)
