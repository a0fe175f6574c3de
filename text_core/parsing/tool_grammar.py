"""Shared rules of tool-call grammars: tools, their arguments, and where calls may occur in an answer.

Grammars are text in llguidance's variant of Lark's notation. A grammar covers a whole answer: only calls if they are
required, else free text in which a call must keep to its form once begun.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_schema import any_object, checked_schema
from text_core.grammar.lark import FREE_TEXT, leading_terminal, literal, until

Marker = Callable[[str], str]
"""Converts a text with markers to an expression: ``GrammarChecker.marker``."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments, an object."""
    strict: bool = False
    """Whether its arguments must match the schema."""


_OPEN = ("additionalProperties", "patternProperties", "propertyNames", "allOf", "anyOf", "oneOf", "$ref")
"""Schema keywords that may allow properties beyond those in ``properties``."""


def object_schema(tool: ToolSpec, index: int) -> Mapping[str, Any]:
    """The schema of a tool's arguments, with type object; raises ``ConstraintError`` for another type.

    If it has ``properties``, even empty ones, others are forbidden unless a keyword of ``_OPEN`` may allow them: models
    would invent some.
    """
    if tool.parameters.get("type", "object") != "object":
        raise ConstraintError(f"tools[{index}].parameters_json", 'type: expected "object"')
    schema = {"type": "object", **tool.parameters}
    schema.pop("nullable", None)  # it would allow null as the arguments
    if "properties" in schema and schema.keys().isdisjoint(_OPEN):
        schema["additionalProperties"] = False
    return schema


def argument_rules(tools: Sequence[ToolSpec]) -> list[str]:
    """A rule ``arguments_i`` for each tool's arguments; raises ``ConstraintError`` for unsupported schemas."""
    schemas = [
        checked_schema(json.dumps(object_schema(tool, index)), field=f"tools[{index}].parameters_json")
        if tool.strict
        else any_object()
        for index, tool in enumerate(tools)
    ]
    return [f"arguments_{index}: %json {schema}" for index, schema in enumerate(schemas)]


def json_calls(tools: Sequence[ToolSpec], required: bool, arguments_key: str, more: str = "") -> list[str]:
    """A rule ``object`` for a call that is a JSON object, and the rules it refers to.

    ``more``: an expression for what the object has behind the arguments.
    """
    pieces = ["{", '"name"', ": "], [", ", f'"{arguments_key}"', ": "]
    if not required:  # terminals must be longer than those of free text
        pieces = ['{"name": '], [f', "{arguments_key}": ']
    begin, key = (" ".join(map(literal, each)) for each in pieces)
    names = [literal(json_text(tool.name)) for tool in tools]
    calls = [f"{name} {key} arguments_{index}" for index, name in enumerate(names)]
    return [f"object: {begin} ({' | '.join(calls)}) {more} {literal('}')}", *argument_rules(tools)]


def marked(marker: str, *, required: bool, single: bool, between: str = "") -> list[str]:
    """Rules of an answer whose calls are the expression ``marker`` followed by the rule ``call``.

    ``between``: an expression for the text between required calls. White space may precede these, as in
    templates.
    """
    if required:
        more = "" if single else f" ({between} {marker} call)*"
        return [rf"start: / ?\n{{0,2}}/ {marker} call{more}"]
    first, rest = leading_terminal(marker)
    is_special = first.startswith("<")  # text never contains it
    reached = f"reached: TEXT {first}" if is_special else f"reached[lazy]: {until(first)}"
    start = f"start: reached{rest} call | TEXT" if single else f"start: (reached{rest} call)* TEXT"
    return [start, reached, f"TEXT: {FREE_TEXT}"]


def unmarked(beginning: str, marker: str, *, required: bool) -> list[str]:
    """Rules of an answer that is the rule ``calls`` or, unless ``required``, free text.

    ``beginning``: a regular expression for the text that begins calls. ``marker``: an expression that also begins them;
    empty: none does.
    """
    if required:
        return ["start: calls"]
    others = [beginning]
    after = ""
    if marker.startswith("<"):
        after = f" ({marker} calls)?"
    elif marker:
        others.append(rf"(?s:.*){regex_text(json.loads(marker))}")
    excluded = " & ".join(f"~/{other}(?s:.*)/" for other in others)
    return [f"start: calls | FREE{after}", f"FREE: {FREE_TEXT} & {excluded}"]


def name_class(ends: str, first: str = "") -> str:
    """A regular expression for names of at most 64 characters, neither of ``ends`` nor control characters.

    White space is within them only. ``first``: what may not be their first character, either. Both are in a class.
    """
    inner, outer = rf"[^\x00-\x1f{ends}]", rf"[^\s\x00-\x1f{ends}]"
    begin = rf"[^\s\x00-\x1f{ends}{first}]"
    return f"{begin}({inner}{{0,62}}{outer})?"


def own_names(pattern: str, tool: ToolSpec, allowed: Callable[[str], bool]) -> str:
    """``pattern``, a regular expression for names, and the names of a tool's arguments that it does not match.

    ``allowed``: whether the format can write a name.
    """
    properties = tool.parameters.get("properties")
    listed = properties if isinstance(properties, Mapping) else ()
    names = [name for name in listed if allowed(name) and re.fullmatch(pattern, name) is None]
    return "|".join([pattern, *map(regex_text, names)])


def other_name(pattern: str, listed: Iterable[str]) -> str:
    """A terminal's definition for the names that match the regular expression ``pattern``, but are not ``listed``."""
    excluded = "|".join(map(regex_text, listed))
    return f"/{pattern}/" + (f" & ~/({excluded})/" if excluded else "")


def json_text(text: str) -> str:
    """``text`` as JSON."""
    return json.dumps(text, ensure_ascii=False)


def regex_text(text: str) -> str:
    """A regular expression for exactly ``text``, between slashes."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)
