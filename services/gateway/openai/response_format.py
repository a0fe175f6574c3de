"""``response_format``: OpenAI's, and variants that clients of other servers send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.gateway.http.api_error import ApiError, invalid, shown
from services.gateway.openai.answer_form import TAGS_EXPECTED, Form, tags_options
from services.gateway.openai.loose_schema import with_any_of

_FIELD = "response_format"
_JSON_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_KEYWORDS = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "items", "oneOf", "properties"})
"""Any of them makes an object a JSON Schema."""
_OF_WRAPPER = frozenset({"name", "strict"})
"""Members of ``json_schema`` that are not keywords."""
_TEXTS = {"regex": ("regex", "pattern", "value"), "grammar": ("grammar", "value")}
"""Members that may hold the form's text."""


def response_format_form(given: Mapping[str, Any] | None) -> Form | None:
    """The form of ``response_format``; None for free text. Raises ``ApiError``."""
    if given is None:
        return None
    if is_schema(given):
        return Form(_FIELD, {"json_schema": dict(given)})
    kind = given.get("type")
    if not isinstance(kind, str | None):
        raise invalid(f"{_FIELD}.type", f"{shown(kind)}: expected a text")
    if kind in _TEXTS:
        return _text_form(given, kind)
    if kind == "structural_tag":
        if given.get("format") is not None or given.get("structures") is None:
            raise invalid(f"{_FIELD}.format", f"not supported: {TAGS_EXPECTED}")
        return Form(_FIELD, {"structural_tags": tags_options(given, _FIELD)})
    if kind not in ("text", "json", "json_object", "json_schema", None):
        problem = f"{shown(kind)} is not supported: expected text, json_object, json_schema or structural_tag"
        raise invalid(f"{_FIELD}.type", problem)
    return _json_form(given, kind)


def is_schema(value: Mapping[str, Any]) -> bool:
    """Whether an object is a JSON Schema, not a wrapper."""
    kind = value.get("type")
    types = kind if isinstance(kind, list) else [kind]
    return any(isinstance(one, str) and one in _JSON_TYPES for one in types) or not _KEYWORDS.isdisjoint(value)


def _json_form(given: Mapping[str, Any], kind: str | None) -> Form | None:
    schemas = list(_schemas(given))
    if len(schemas) > 1:
        raise _too_many([path for path, _ in schemas])
    if not schemas:
        match kind:
            case "text":
                return None
            case "json" | "json_object":
                return Form(_FIELD, {"json_object": True})
            case None:
                raise invalid(f"{_FIELD}.type", "missing: expected text, json_object or json_schema")
            case _:
                raise invalid(f"{_FIELD}.json_schema.schema", "missing: expected a JSON Schema")
    path, schema = schemas[0]
    if kind == "text":
        raise invalid(path, "given beside type text: expected type json_schema, or no schema")
    if not isinstance(schema, dict | str | bool):
        raise invalid(path, "expected a JSON Schema")
    wrapper = given.get("json_schema")
    is_loose = isinstance(wrapper, Mapping) and wrapper.get("strict") is False
    return Form(path, {"json_schema": with_any_of(schema) if is_loose and isinstance(schema, dict) else schema})


def _schemas(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Paths and schemas."""
    wrapper = given.get("json_schema")
    path = f"{_FIELD}.json_schema"
    if not isinstance(wrapper, Mapping):
        if wrapper is not None:
            yield path, wrapper
    elif wrapper.get("schema") is not None:
        yield f"{path}.schema", wrapper["schema"]
    elif is_schema(wrapper):
        yield path, {name: value for name, value in wrapper.items() if name not in _OF_WRAPPER}
    for name in ("schema", "value"):
        if given.get(name) is not None:
            yield f"{_FIELD}.{name}", given[name]


def _text_form(given: Mapping[str, Any], kind: str) -> Form:
    texts = [(f"{_FIELD}.{name}", given[name]) for name in _TEXTS[kind] if given.get(name) is not None]
    if len(texts) > 1:
        raise _too_many([path for path, _ in texts])
    if not texts or not isinstance(texts[0][1], str):
        raise invalid(f"{_FIELD}.{_TEXTS[kind][0]}", "missing: expected a text")
    return Form(texts[0][0], {kind: texts[0][1]})


def _too_many(paths: list[str]) -> ApiError:
    return invalid(paths[1], f"an answer has one form, and {' and '.join(paths)} give {len(paths)}: give one")
