"""What the grammars of calls have in common: tools, their arguments, and where in an answer calls may come.

Grammars are text in llguidance's variant of Lark's notation. Each covers a whole answer: calls and nothing else if they
are demanded, else free text in which a call is held to its form once it has begun.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_schema import any_object, checked_schema
from text_core.grammar.lark import FREE_TEXT, literal, until

Marker = Callable[[str], str]
"""Makes an expression of a text with markers in it: ``GrammarChecker.marker``."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments, an object."""
    strict: bool = False
    """Hold its arguments to the schema."""


_OPEN = ("additionalProperties", "patternProperties", "propertyNames", "allOf", "anyOf", "oneOf", "$ref")
"""Keywords of schemas that say more of the properties that there may be."""


def object_schema(tool: ToolSpec, index: int) -> Mapping[str, Any]:
    """The schema of a tool's arguments, which says that they are an object; raises ``ConstraintError``.

    A tool that names its arguments, or none, takes no others, unless its schema says more of them: models would make
    some up.
    """
    if tool.parameters.get("type", "object") != "object":
        raise ConstraintError(f"tools[{index}].parameters_json", 'type: expected "object"')
    schema = {"type": "object", **tool.parameters}
    schema.pop("nullable", None)  # which would allow null in place of the arguments
    if "properties" in schema and schema.keys().isdisjoint(_OPEN):
        schema["additionalProperties"] = False
    return schema


def argument_rules(tools: Sequence[ToolSpec]) -> list[str]:
    """A rule ``arguments_i`` for each tool's arguments; raises ``ConstraintError`` for what is not supported."""
    schemas = [
        checked_schema(json.dumps(object_schema(tool, index)), field=f"tools[{index}].parameters_json")
        if tool.strict
        else any_object()
        for index, tool in enumerate(tools)
    ]
    return [f"arguments_{index}: %json {schema}" for index, schema in enumerate(schemas)]


def json_calls(tools: Sequence[ToolSpec], required: bool, arguments_key: str) -> list[str]:
    """A rule ``object`` for a call that is a JSON object, and the rules that it needs."""
    pieces = ["{", '"name"', ": "], [", ", f'"{arguments_key}"', ": "]
    if not required:  # terminals longer than those of free text
        pieces = ['{"name": '], [f', "{arguments_key}": ']
    begin, key = (" ".join(map(literal, each)) for each in pieces)
    names = [literal(json.dumps(tool.name, ensure_ascii=False)) for tool in tools]
    calls = [f"{name} {key} arguments_{index}" for index, name in enumerate(names)]
    return [f"object: {begin} ({' | '.join(calls)}) {literal('}')}", *argument_rules(tools)]


def marked(marker: str, *, required: bool, single: bool, between: str = "") -> list[str]:
    """Rules of an answer with calls that an expression begins, and that the rule ``call`` continues.

    ``between``: what may stand between calls that are demanded.
    """
    if required:
        return [f"start: {marker} call" if single else f"start: {marker} call ({between} {marker} call)*"]
    is_special = marker.startswith("<")  # which no text contains
    reached = f"reached: TEXT {marker}" if is_special else f"reached[lazy]: {until(marker)}"
    start = "start: reached call | TEXT" if single else "start: (reached call)* TEXT"
    return [start, reached, f"TEXT: {FREE_TEXT}"]


def unmarked(beginning: str, marker: str, *, required: bool) -> list[str]:
    """Rules of an answer that is the rule ``calls``, or else free text.

    ``beginning``: a regular expression of the texts that begin calls. ``marker``: an expression that begins them, too.
    """
    if required:
        return ["start: calls"]
    others = [beginning]
    after = ""
    if marker.startswith("<"):
        after = f" ({marker} calls)?"
    else:
        others.append(rf"(?s:.*){regex_text(json.loads(marker))}")
    excluded = " & ".join(f"~/{other}(?s:.*)/" for other in others)
    return [f"start: calls | FREE{after}", f"FREE: {FREE_TEXT} & {excluded}"]


def regex_text(text: str) -> str:
    """A regular expression for exactly ``text``, between slashes."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)
