"""The enforced keywords of JSON Schema, draft 2020-12, and their allowed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from text_core.grammar.json_text import shortened, shown
from text_core.grammar.regex import RegexError, search

MAX_LENGTH = 1_000_000
"""Maximum of ``minLength``, ``maxLength`` and the counts of items and properties."""
MAX_STRING = 16 << 10
"""Maximum characters of a name, or of a string in const or enum."""
MAX_NUMBER = 2**53
"""Integers up to it have one value in every reader; bounds that lie beyond, such as those of int64, mean it."""
MAX_MULTIPLE = 10_000
"""Maximum of ``multipleOf`` without its decimal point."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)


class KeywordError(ValueError):
    """A keyword's value cannot be used; the text says why."""


def _number(value: Any) -> Any:
    if not _is_number(value):
        raise KeywordError("expected a number")
    if abs(value) > MAX_NUMBER:
        raise KeywordError(f"{shortened(str(value))} is too large: expected at most 2^53 (9007199254740992)")
    if 0 < abs(value) < 1e-9:
        raise KeywordError(f"{value} is too small: expected 0, or at least 1e-9")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lower_bound(value: Any) -> Any:
    return -MAX_NUMBER if _is_number(value) and value < -MAX_NUMBER else _number(value)


def _upper_bound(value: Any) -> Any:
    return MAX_NUMBER if _is_number(value) and value > MAX_NUMBER else _number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _multiple(value: Any) -> Any:
    value = _number(value)
    if value <= 0:
        raise KeywordError("expected a number above 0")
    for decimals in range(10):
        scaled = value * 10**decimals
        if math.isclose(scaled, round(scaled), rel_tol=1e-12):
            if round(scaled) > MAX_MULTIPLE:
                break
            return value
    raise KeywordError(f"{value} has too many digits: expected at most {MAX_MULTIPLE} without its decimal point")


def _count(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise KeywordError("expected an integer of at least 0")
    return value


def _lower_count(value: Any) -> int:
    if (count := _count(value)) > MAX_LENGTH:
        raise KeywordError(f"{shortened(str(count))} is too large: expected at most {MAX_LENGTH}")
    return count


def _upper_count(value: Any) -> int:
    return min(_count(value), MAX_LENGTH)


def _type(value: Any) -> Any:
    for name in [value] if isinstance(value, str) else (listed := value if isinstance(value, list) else [None]):
        if name not in TYPES:
            raise KeywordError(f"expected one of {', '.join(TYPES)}, or a list of them")
    if not isinstance(value, str) and not listed:
        raise KeywordError("is empty: expected at least one type")
    return value


def _pattern(value: Any) -> str:
    if not isinstance(value, str):
        raise KeywordError("expected a regular expression")
    try:
        return f"^(?:{search(value)})$"
    except RegexError as error:
        raise KeywordError(str(error)) from None


def _format(value: Any) -> str:
    if not isinstance(value, str):
        raise KeywordError("expected a text")
    return value


def _required(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise KeywordError("expected a list of names")
    for name in value:
        check_text(name)
    return list(dict.fromkeys(value))


def check_text(text: str) -> None:
    """Refuse control characters, as answers' strings have no numeric escapes, and texts that take long to compile."""
    if len(text) > MAX_STRING:
        raise KeywordError(f"{shown(text)} is longer than {MAX_STRING} characters")
    for char in text:
        if (char < " " and char not in "\b\t\n\f\r") or char == "\x7f":
            raise KeywordError(f"{shown(text)} has the control character U+{ord(char):04X}, which answers cannot have")


def check_value(value: Any) -> int:
    """Check a value of ``const`` or ``enum``; returns its number of values, nested ones included."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, list):
        return 1 + sum(map(check_value, value))
    elif isinstance(value, dict):
        for name in value:
            check_text(name)
        return 1 + sum(map(check_value, value.values()))
    elif not isinstance(value, bool) and value is not None:
        _number(value)
    return 1


def check_draft(value: Any) -> None:
    """Refuse a value of ``$schema`` that names another language."""
    if not isinstance(value, str) or value.rstrip("#") not in _DRAFTS:
        raise KeywordError(f"expected one of {', '.join(_DRAFTS)}")


SIMPLE: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "minimum": _lower_bound,
    "maximum": _upper_bound,
    "exclusiveMinimum": _lower_bound,
    "exclusiveMaximum": _upper_bound,
    "multipleOf": _multiple,
    "minLength": _lower_count,
    "maxLength": _upper_count,
    "pattern": _pattern,
    "format": _format,
    "minItems": _lower_count,
    "maxItems": _upper_count,
    "minProperties": _lower_count,
    "maxProperties": _upper_count,
    "required": _required,
}
"""Converters for keywords without subschemas: return the value for llguidance, or raise ``KeywordError``."""

WITH_SCHEMAS = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "prefixItems",
    "items",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
)

SUPPORTED = (*SIMPLE, "const", "enum", "uniqueItems", "propertyNames", *WITH_SCHEMAS)
UNSUPPORTED = frozenset(
    (
        *("not", "if", "dependencies", "dependentRequired", "dependentSchemas"),
        *("contains", "unevaluatedProperties", "unevaluatedItems"),
        *("$dynamicRef", "$recursiveRef"),
        *("disallow", "divisibleBy", "extends"),  # draft 03's
        "x-guidance",  # llguidance's options
    )
)
"""Keywords with restrictions that are not enforced. Those that add to one of them, as ``then``, say nothing alone."""
_RESTRICTING = frozenset((*SUPPORTED, *UNSUPPORTED, "additionalItems", "nullable", "discriminator"))


def annotates(keyword: str) -> bool:
    """Whether a keyword restricts nothing: JSON Schema has unknown ones annotate."""
    return keyword not in _RESTRICTING


def without_annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The restrictions of ``schema``."""
    return {keyword: value for keyword, value in schema.items() if not annotates(keyword)}
