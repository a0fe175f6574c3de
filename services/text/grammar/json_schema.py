"""v0"""

from __future__ import annotations

import json
from typing import Any

from services.text.grammar.constraints import MAX_TEXT_BYTES, ConstraintError


def any_object(any_whitespace: bool = False) -> str:
    return _with_options({"type": "object"}, any_whitespace)


def checked_schema(schema: str, any_whitespace: bool = False, field: str = "json_schema") -> str:
    if len(schema.encode()) > MAX_TEXT_BYTES:
        raise ConstraintError(field, "too large")
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise ConstraintError(field, f"is not JSON: {error}") from None
    return _with_options(value, any_whitespace)


def _with_options(schema: dict[str, Any], any_whitespace: bool) -> str:
    options = (
        {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,128}"}
        if any_whitespace
        else {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    )
    return json.dumps({**schema, "x-guidance": options})
