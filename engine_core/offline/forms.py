"""The form of a text that callers of ``LLM`` ask for by one of the parameters ``FORMS``; checks types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine_core.errors import InvalidRequestError

FORMS = ("json_schema", "json_object", "regex", "choice", "grammar")
"""Parameters that give a text its form; at most one may be set."""


def form_of(params: Any, place: str) -> tuple[str, Any] | None:
    """The name and value of the form in ``params``, if any: schemas as JSON text, choices as a tuple.

    Raises ``InvalidRequestError``, naming ``place``, for several forms or a wrong type.
    """
    given = [name for name in FORMS if getattr(params, name) is not (False if name == "json_object" else None)]
    if len(given) > 1:
        raise InvalidRequestError(f"{place}: {given[1]}", f"is a second form, beside {given[0]}; expected one")
    if not given:
        if params.any_whitespace:
            raise InvalidRequestError(f"{place}: any_whitespace", "is for JSON; expected json_schema or json_object")
        return None
    name, field = given[0], f"{place}: {given[0]}"
    value = getattr(params, name)
    if name == "json_schema":
        value = _schema_text(value, field)
    elif name == "choice" and not isinstance(value, list | tuple):
        raise InvalidRequestError(field, f"is of type {type(value).__name__}; expected a list of texts")
    for text in {"json_object": (), "choice": value}.get(name, (value,)):
        _check_text(text, field)
    return name, tuple(value) if name == "choice" else value


def _schema_text(schema: Any, field: str) -> str:
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, Mapping | bool):
        problem = f"is of type {type(schema).__name__}; expected a dict, a JSON text or a bool"
        is_model = isinstance(schema, type) and hasattr(schema, "model_json_schema")
        raise InvalidRequestError(field, problem + (": its model_json_schema()" if is_model else ""))
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(field, f"cannot be written as JSON: {error}") from None


def _check_text(text: object, field: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(field, f"has a value of type {type(text).__name__}; expected text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(field, "has text that UTF-8 cannot encode") from None
