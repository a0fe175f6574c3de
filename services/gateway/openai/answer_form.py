"""The required form of an answer: ``structured_outputs`` as ring options, at most one form per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from services.gateway.http.api_error import invalid, shown
from services.gateway.http.large import check_values

MAX_TAGS = 256
"""A processor's limit."""


class Form(NamedTuple):
    """A form given by a request."""

    field: str
    """Path in the request."""
    options: Mapping[str, Any]
    """The ring's."""


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


TAGS_EXPECTED = "give structures, each with begin, schema and end, and triggers"


class _Tags(msgspec.Struct):
    structures: list[dict[str, Any]]
    triggers: list[str] | None = None


def tags_options(given: str | Mapping[str, Any], path: str) -> dict[str, Any]:
    """The ring's structural tags from ``structures`` and ``triggers``, perhaps as JSON text. Raises ``ApiError``."""
    if isinstance(given, str):
        check_values(given.encode())  # the body's check counted it as one value
    try:
        tags = msgspec.convert(msgspec.json.decode(given) if isinstance(given, str) else given, _Tags)
    except msgspec.ValidationError as error:
        raise invalid(path, f"{error}: {TAGS_EXPECTED}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(path, f"not JSON ({error}): {TAGS_EXPECTED}") from None
    return _tags(tags.structures, tags.triggers, path)


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
        forms["structural_tags"] = tags_options(given.structural_tag, f"{path}.structural_tag")
    forms = {name: form for name, form in forms.items() if form is not None}
    if not forms:
        raise invalid(path, "gives no form: expected json, regex, choice, grammar, json_object or structural_tag")
    if len(forms) > 1:
        raise invalid(path, f"an answer has one form, and {' and '.join(forms)} are {len(forms)}: give one")
    if given.disable_any_whitespace is False:
        forms["any_whitespace"] = True
    return forms


def form_options(forms: Sequence[Form]) -> dict[str, Any]:
    """The ring's options of a request's form. Raises ``ApiError`` if several fields give one."""
    if len(forms) > 1:
        both = " and ".join(form.field for form in forms)
        raise invalid(forms[1].field, f"an answer has one form, and {both} give {len(forms)}: leave out all but one")
    return dict(forms[0].options) if forms else {}
