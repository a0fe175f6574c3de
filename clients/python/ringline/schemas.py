"""JSON Schemas as callers give them: a dict, a JSON text, a bool, or a pydantic model class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringline.proto_fields import json_text

_MAPS = ("$defs", "properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def schema_text(value: object, option: str) -> str:
    """A schema as JSON text. A model class's admits no extra properties, since pydantic would ignore them.

    Raises TypeError or InvalidRequest, naming ``option``, for a value that is no schema.
    """
    if isinstance(value, str):
        return value
    if is_model(value):
        value = model_schema(value)
    if not isinstance(value, Mapping | bool):
        raise TypeError(
            f"{option}: expected a dict, a JSON text, a bool or a pydantic model class, got {type(value).__name__}; "
            "pydantic.TypeAdapter(T).json_schema() is the schema of another type T"
        )
    if isinstance(value, Mapping):
        wrapped = next((key for key in ("schema", "json_schema") if isinstance(value.get(key), Mapping)), None)
        if wrapped is not None:
            raise TypeError(f"{option}: expected the schema itself, as at {wrapped!r} of this dict")
    return json_text(value, option)


def is_model(value: object) -> bool:
    """Whether ``value`` is a pydantic model class."""
    return isinstance(value, type) and hasattr(value, "model_json_schema")


def model_schema(model: Any) -> dict[str, Any]:
    """The schema of a pydantic model class, with properties other than its fields forbidden."""
    schema: dict[str, Any] = model.model_json_schema()
    _close(schema)
    return schema


def _close(schema: Any) -> None:
    """Set additionalProperties to False wherever ``schema`` lists properties and leaves it unset."""
    if not isinstance(schema, dict):
        return
    if "properties" in schema or "patternProperties" in schema:
        schema.setdefault("additionalProperties", False)
    parts = [schema.get(key) for key in _SINGLE]
    for key in _LISTS:
        parts += schema.get(key, ())
    for key in _MAPS:
        parts += schema.get(key, {}).values()
    for part in parts:
        _close(part)
