"""The form that an answer must have: ``response_format``, ``structured_outputs`` and older forms as ring options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.http.api_error import invalid, shown

MAX_TAGS = 256
"""As many as a processor takes."""


class JsonSchemaFormat(msgspec.Struct):
    """``response_format.json_schema``."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct):
    """``response_format``."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: Any = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's ``structured_outputs``."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


def response_format_options(given: ResponseFormat | None) -> dict[str, Any]:
    """The ring's options for ``response_format``."""
    if given is None or given.type == "text":
        return {}
    if given.type == "json_object":
        return {"json_object": True}
    if given.type == "json_schema":
        if given.json_schema is None:
            raise invalid("response_format.json_schema", "missing: expected an object with name and schema")
        schema = given.json_schema.schema
        return {"json_object": True} if schema is None else {"json_schema": schema}
    if given.type == "structural_tag":
        if given.format is not None or given.structures is None:
            raise invalid("response_format.format", f"not supported: {_TAGS}")
        return {"structural_tags": _tags(given.structures, given.triggers, "response_format")}
    problem = f"{shown(given.type)} is not supported: expected text, json_object, json_schema or structural_tag"
    raise invalid("response_format.type", problem)


_TAGS = "give structures, each with begin, schema and end, and triggers"


def _tags(structures: list[dict[str, Any]], triggers: list[str] | None, path: str) -> dict[str, Any]:
    for name, given in ("structures", structures), ("triggers", triggers or ()):
        if len(given) > MAX_TAGS:
            raise invalid(f"{path}.{name}", f"{len(given)} entries: expected at most {MAX_TAGS}")
    tags = []
    for number, structure in enumerate(structures):
        begin = structure.get("begin")
        if not isinstance(begin, str):
            raise invalid(f"{path}.structures[{number}].begin", "missing: expected a text")
        trigger = next((one for one in triggers or () if begin.startswith(one)), None)
        if triggers and trigger is None:
            raise invalid(f"{path}.triggers", f"none begins {shown(begin)}: expected one for each structure")
        schema = structure.get("schema", structure.get("json_schema"))
        tags.append({"begin": begin, "json_schema": schema, "end": structure.get("end"), "trigger": trigger})
    return {"tags": tags}


def structured_options(given: StructuredOutputs | None) -> dict[str, Any]:
    """The ring's options for ``structured_outputs``."""
    if given is None:
        return {}
    path = "structured_outputs"
    if given.whitespace_pattern is not None:
        problem = "not supported: disable_any_whitespace says whether the model may put white space"
        raise invalid(f"{path}.whitespace_pattern", problem, code="unsupported_parameter")
    if given.disable_additional_properties:
        problem = 'not supported: give "additionalProperties": false in the schema'
        raise invalid(f"{path}.disable_additional_properties", problem, code="unsupported_parameter")
    forms: dict[str, Any] = {
        "json_schema": given.json,
        "regex": given.regex,
        "choice": given.choice,
        "grammar": given.grammar,
        "json_object": given.json_object or None,
    }
    if given.structural_tag is not None:
        forms["structural_tags"] = _legacy_tags(given.structural_tag, f"{path}.structural_tag")
    forms = {name: form for name, form in forms.items() if form is not None}
    if not forms:
        raise invalid(path, "gives no form: expected json, regex, choice, grammar, json_object or structural_tag")
    if len(forms) > 1:
        raise invalid(path, f"an answer has one form, and {' and '.join(forms)} are {len(forms)}: give one")
    if given.disable_any_whitespace is False:
        forms["any_whitespace"] = True
    return forms


class _LegacyTags(msgspec.Struct):
    structures: list[dict[str, Any]]
    triggers: list[str] | None = None


def _legacy_tags(given: str | dict[str, Any], path: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(given) if isinstance(given, str) else given
        tags = msgspec.convert(value, _LegacyTags)
    except msgspec.ValidationError as error:
        raise invalid(path, f"{error}: {_TAGS}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(path, f"not JSON ({error}): {_TAGS}") from None
    return _tags(tags.structures, tags.triggers, path)


def form_options(*given: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The ring's options of one form. Raises ``ApiError`` where two fields give one; ``given``: their names first."""
    forms = [(name, options) for name, options in given if options]
    if len(forms) > 1:
        both = " and ".join(name for name, _ in forms)
        raise invalid(forms[1][0], f"an answer has one form, and {both} give {len(forms)}: leave out all but one")
    return dict(forms[0][1]) if forms else {}
