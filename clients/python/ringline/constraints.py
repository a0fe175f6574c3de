"""The form of an answer: converts options such as ``json_schema`` to the contract's Constraint, and parses JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from ringline.proto_fields import assign, expect
from ringline.schemas import schema_text
from ringline.tools import set_function
from ringline.types.v1 import constraint_pb2 as pb

KINDS = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tags", "tool_calls")
"""Options that give a form; a request has at most one."""
OPTIONS = frozenset({*KINDS, "any_whitespace", "after_reasoning"})
_TAG_KEYS = ("begin", "json_schema", "end", "trigger")
_TAGS_KEYS = ("tags", "required", "single")
_CALL_KEYS = ("name", "parameters", "strict")
_CALLS_KEYS = ("tools", "required", "single", "form")


def set_constraint(target: pb.Constraint, options: Mapping[str, Any]) -> None:
    """Write the options in ``OPTIONS``, none of them None, into ``target``; leave it unset without a form.

    Raises TypeError for two forms, for another option without a form, and for a value of a wrong type.
    """
    if "json_object" in options:
        expect(bool, "True", options["json_object"], "json_object")
    given = [kind for kind in KINDS if kind in options and not (kind == "json_object" and not options[kind])]
    if len(given) > 1:
        raise TypeError(f"an answer has one form, and {' and '.join(given)} give {len(given)}: leave out all but one")
    others = [name for name in ("any_whitespace", "after_reasoning") if name in options]
    if not given:
        if others:
            raise TypeError(f"option {others[0]!r} is for answers that have a form: give {', '.join(KINDS[:5])} too")
        return
    kind, value = given[0], options[given[0]]
    if kind == "json_schema":
        assign(target, kind, schema_text(value, kind))
    elif kind == "choice":
        if isinstance(value, str):
            raise TypeError(f"choice: expected a list of str, got str: [{value!r}] has this text alone")
        target.choice.SetInParent()
        assign(target.choice, "texts", value, option="choice")
    elif kind == "structural_tags":
        _set_tags(target.structural_tags, value)
    elif kind == "tool_calls":
        _set_calls(target.tool_calls, value)
    else:
        assign(target, kind, value)
    for name in others:
        assign(target, name, options[name])


def _set_tags(target: pb.StructuralTags, value: Any) -> None:
    if isinstance(value, list | tuple):
        value = {"tags": value}
    expect(Mapping, "a list of tags, or a dict such as {'tags': […], 'required': True}", value, "structural_tags")
    _set_switches(target, value, _TAGS_KEYS, "structural_tags")
    tags = value.get("tags", ())
    expect(Sequence, "a list of dicts", tags, "structural_tags.tags")
    for number, tag in enumerate(tags):
        path = f"structural_tags.tags[{number}]"
        expect(Mapping, "a dict such as {'begin': '<add>', 'json_schema': {…}, 'end': '</add>'}", tag, path)
        _expect_keys(tag, _TAG_KEYS, path)
        added = target.tags.add()
        for name, one in tag.items():
            if one is not None:
                text = schema_text(one, f"{path}.{name}") if name == "json_schema" else one
                assign(added, name, text, option=f"{path}.{name}")


def _set_calls(target: pb.ToolCalls, value: Any) -> None:
    expect(Mapping, "a dict such as Admitted.options has it", value, "tool_calls")
    _set_switches(target, value, _CALLS_KEYS, "tool_calls")
    tools = value.get("tools", ())
    expect(Sequence, "a list of dicts", tools, "tool_calls.tools")
    for number, tool in enumerate(tools):
        path = f"tool_calls.tools[{number}]"
        expect(Mapping, "a dict such as {'name': 'add', 'parameters': {…}}", tool, path)
        _expect_keys(tool, _CALL_KEYS, path)
        set_function(target.tools.add(), tool, path)
    if (form := value.get("form")) is not None:
        expect(Mapping, "a dict such as {'json_schema': {…}}", form, "tool_calls.form")
        set_constraint(target.form, form)


def _set_switches(target: Message, value: Mapping[str, Any], keys: Sequence[str], path: str) -> None:
    _expect_keys(value, keys, path)
    target.SetInParent()
    for name in ("required", "single"):
        if value.get(name) is not None:
            assign(target, name, value[name], option=f"{path}.{name}")


def _expect_keys(value: Mapping[str, Any], keys: Sequence[str], path: str) -> None:
    if unknown := [key for key in value if key not in keys]:
        raise TypeError(f"{path}: unknown key {unknown[0]!r}: expected {', '.join(keys)}")


def json_reader(options: Mapping[str, Any]) -> Callable[[str], Any] | None:
    """The parser of a JSON answer: into an instance if the schema is a pydantic model; None if the form is not JSON."""
    schema = options.get("json_schema")
    if hasattr(schema, "model_validate_json"):
        return schema.model_validate_json  # type: ignore[union-attr, no-any-return]
    return json.loads if schema is not None or options.get("json_object") else None
