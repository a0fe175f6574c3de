"""Reads clients' JSON within bounds, and only if every reader understands it the same way."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from text_core.grammar.constraints import MAX_TEXT_BYTES, ConstraintError

MAX_DEPTH = 100
"""Maximum depth of nested arrays and objects; llguidance reads up to 128."""

# An unclosed string reaches to the end: else it would be tried again from every quote in it.
_STRINGS_AND_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def read_json(text: str, field: str) -> Any:
    """The value of ``text``.

    Raises ``ConstraintError`` for what is no JSON, nests deeper than ``MAX_DEPTH``, has a key twice, or has numbers or
    strings that not every reader can represent.
    """
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise ConstraintError(
            field, f"has {size} bytes: expected at most {MAX_TEXT_BYTES} ({MAX_TEXT_BYTES >> 10} KiB)"
        )

    def refuse(problem: str) -> NoReturn:
        raise ConstraintError(field, problem)

    def parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            refuse(f"has the key {shown(twice)} twice in one object")
        return value

    def parse_float(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            refuse(f"has the number {shortened(digits)}, which is too large")
        return value

    def parse_int(digits: str) -> int:
        if len(digits) > 310:
            refuse(f"has the number {shortened(digits)}, which is too large")
        return int(digits)

    _check_depth(text, field)
    try:
        value = json.loads(
            text,
            object_pairs_hook=parse_object,
            parse_float=parse_float,
            parse_int=parse_int,
            parse_constant=lambda name: refuse(f"has {name}, which is not JSON"),
        )
    except json.JSONDecodeError as error:
        refuse(f"is not JSON: {error}")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        refuse("has half a surrogate pair in a string")
    return value


def shown(text: str) -> str:
    """``text`` in quotes for messages, shortened."""
    return json.dumps(shortened(text))


def shortened(text: str) -> str:
    """``text`` for messages: at most 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_depth(text: str, field: str) -> None:
    depth = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ConstraintError(field, f"nests deeper than {MAX_DEPTH} arrays and objects")
        elif match[0] in "]}":
            depth -= 1
