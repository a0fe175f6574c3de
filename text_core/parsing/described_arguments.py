"""The arguments of a strict tool one by one, for formats in which a call's arguments are no single JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from text_core.grammar.constraints import MAX_TEXT_BYTES, ConstraintError
from text_core.grammar.json_keywords import without_annotations
from text_core.grammar.json_schema import checked_schema
from text_core.parsing.tool_grammar import ToolSpec, object_schema

_DEFINITIONS = ("$defs", "definitions")
_KEYWORDS = frozenset(("type", "properties", "required", "additionalProperties"))
"""Keywords of a tool's parameters that can be enforced argument by argument."""
_BY_NAME = ("properties", "patternProperties", "dependencies", "dependentSchemas")
"""Keywords with schemas by name."""


@dataclass(frozen=True, slots=True)
class DescribedArgument:
    """One argument of a tool."""

    name: str
    schema: Any
    """With the definitions that it refers to."""
    required: bool


@dataclass(frozen=True, slots=True)
class DescribedArguments:
    """All arguments of a tool."""

    listed: Sequence[DescribedArgument]
    """In the order of its properties."""
    others: Any
    """The schema of any other; False: there is none."""


def described_arguments(
    tool: ToolSpec, index: int, format_name: str, *, allowed: Callable[[str], bool], expected: str
) -> DescribedArguments:
    """The arguments of tool number ``index``.

    ``allowed``: whether the format can write a name; ``expected``: which names those are. Raises ``ConstraintError``
    for an invalid schema, and for one that says more than can be enforced argument by argument.
    """
    field = f"tools[{index}].parameters_json"
    schema = object_schema(tool, index)
    checked_schema(json.dumps(schema), field=field)  # the code below relies on a valid schema
    if unknown := sorted(without_annotations(schema).keys() - _KEYWORDS):
        raise ConstraintError(field, f"{unknown[0]}: is not supported in the format {format_name}")
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", [])
    if missing := sorted(set(required) - set(properties)):
        raise ConstraintError(field, f"required: {missing[0]!r} is not a property")
    if wrong := next((name for name in properties if not allowed(name)), None):
        raise ConstraintError(field, f"{wrong!r}: expected {expected}")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    others = schema.get("additionalProperties", True)
    others_refer = _refers(others, field, format_name)
    referring = {name for name, value in properties.items() if _refers(value, field, format_name)}
    for named in definitions.values():
        _refers({"properties": named}, field, format_name)
    copies = len(referring) + others_refer
    if (size := len(json.dumps(definitions)) * copies) > MAX_TEXT_BYTES:
        problem = f"$defs: {size} bytes with a copy for each of {copies} properties, which the format"
        raise ConstraintError(field, f"{problem} {format_name} needs: expected at most {MAX_TEXT_BYTES}")
    listed = [
        DescribedArgument(name, {**value, **definitions} if name in referring else value, name in required)
        for name, value in properties.items()
    ]
    return DescribedArguments(listed, {**others, **definitions} if others_refer else others)


def _refers(schema: object, field: str, format_name: str) -> bool:
    """Whether a schema contains references; raises if one is not to a definition, as nothing else is copied."""
    found, stack = False, [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        if not isinstance(part, dict):
            continue
        for keyword, value in without_annotations(part).items():
            if keyword in _BY_NAME:
                stack += value.values() if isinstance(value, dict) else ()
            elif keyword not in ("const", "enum"):
                stack.append(value)
        if isinstance(reference := part.get("$ref"), str):
            found = True
            if not reference.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS)):
                problem = f"$ref: {reference[:80]!r} is not supported in the format {format_name}: expected #/$defs/…"
                raise ConstraintError(field, problem)
    return found
