"""Constraints as protobuf messages."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Protocol

from ringline.types.v1 import constraint_pb2, part_pb2

from text_core.answer_grammar import AnswerForm, ToolCalls
from text_core.grammar.constraints import (
    Constraint,
    ConstraintError,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
    StructuralTags,
)
from text_core.parsing.tool_grammar import ToolSpec

MAX_TOOLS = 512
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


class ToolMessage(Protocol):
    """A tool of a chat, or one that a constraint lets the model call."""

    name: str
    parameters_json: str
    strict: bool


def read_answer_form(message: constraint_pb2.Constraint, parse: part_pb2.ParseParams) -> AnswerForm:
    """The answer's form from both; schemas and grammars are not checked. Raises ``ConstraintError``."""
    return AnswerForm(
        _read_tool_calls(message.tool_calls) if message.HasField("tool_calls") else _read_constraint(message),
        message.after_reasoning,
        parse.reasoning,
        parse.begins_in_reasoning,
        parse.tool_calls,
    )


def read_tools(tools: Collection[ToolMessage]) -> tuple[ToolSpec, ...]:
    """The tools; raises ``ConstraintError`` unless names are distinct and parameters describe objects."""
    if len(tools) > MAX_TOOLS:
        raise ConstraintError("tools", f"{len(tools)} tools: expected at most {MAX_TOOLS}")
    specs: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        if not TOOL_NAME.fullmatch(tool.name):
            problem = f"{tool.name[:140]!r} is not a name: expected 1 to 128 characters of [A-Za-z0-9_.-]"
            raise ConstraintError(f"{field}.name", problem)
        if tool.name in specs:
            raise ConstraintError(f"{field}.name", f"{tool.name!r} is given twice")
        parameters = _parameters(f"{field}.parameters_json", tool.parameters_json)
        specs[tool.name] = ToolSpec(tool.name, parameters, tool.strict)
    return tuple(specs.values())


def _parameters(field: str, text: str) -> dict[str, Any]:
    if not text:
        return _NO_ARGUMENTS
    try:
        parameters = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(field, f"not JSON ({error}): expected an object") from None
    if not isinstance(parameters, dict):
        raise ConstraintError(field, f"a JSON {type(parameters).__name__}: expected an object")
    if parameters.get("type", "object") != "object":
        problem = f"/type: {str(parameters['type'])[:80]!r}: expected 'object', as arguments are"
        raise ConstraintError(field, problem)
    if not isinstance(parameters.get("properties", {}), dict):
        raise ConstraintError(field, "/properties: not an object: expected a JSON Schema")
    return parameters


def _read_tool_calls(calls: constraint_pb2.ToolCalls) -> ToolCalls:
    if not calls.tools:
        raise ConstraintError("tool_calls.tools", "empty: expected at least one")
    try:
        tools = read_tools(calls.tools)
    except ConstraintError as error:
        raise ConstraintError(f"tool_calls.{error.field}", error.problem) from None
    return ToolCalls(tools, calls.required, calls.single, _read_form(calls.form) if calls.HasField("form") else None)


def _read_form(message: constraint_pb2.Constraint) -> Constraint:
    if message.HasField("after_reasoning"):
        raise ConstraintError("tool_calls.form.after_reasoning", "set: expected in the constraint with the calls")
    try:
        return _read_constraint(message)
    except ConstraintError as error:
        raise ConstraintError(f"tool_calls.form.{error.field}".rstrip("."), error.problem) from None


def _read_constraint(message: constraint_pb2.Constraint) -> Constraint:
    match message.WhichOneof("kind"):
        case "json_schema":
            return JsonSchema(message.json_schema, message.any_whitespace)
        case "json_object":
            if not message.json_object:
                raise ConstraintError("json_object", "false: expected true, or no constraint")
            return JsonObject(message.any_whitespace)
        case "regex":
            return Regex(message.regex)
        case "choice":
            return OneOf(tuple(message.choice.texts))
        case "grammar":
            return Grammar(message.grammar)
        case "structural_tags":
            tags = message.structural_tags
            return StructuralTags(tuple(map(_tag, tags.tags)), tags.required, tags.single, message.any_whitespace)
        case _:
            kinds = "json_schema, json_object, regex, choice, grammar and structural_tags"
            raise ConstraintError("", f"none is set: expected one of {kinds}")


def _tag(tag: constraint_pb2.StructuralTag) -> StructuralTag:
    return StructuralTag(tag.begin, tag.json_schema or None, tag.end, tag.trigger or None)
