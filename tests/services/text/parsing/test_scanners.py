"""Values that come in pieces, against Python's own readers of JSON and of literals."""

from __future__ import annotations

import ast
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from services.text.parsing.json_calls import Scanner
from services.text.parsing.json_scanner import MAX_DEPTH, JsonScanner
from services.text.parsing.python_scanner import ArgumentsScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def scan(scanner: Scanner, pieces: list[str]) -> tuple[int, str, bool]:
    """Characters passed, the JSON of them, and whether the value is complete."""
    passed, out = 0, ""
    for piece in pieces:
        end, text = scanner.feed(piece, 0)
        passed, out = passed + end, out + text
        if end < len(piece):
            break
    return passed, out, scanner.done


@given(VALUES, st.sampled_from([None, 1]))
@settings(max_examples=30)
def test_json_ends_where_its_value_ends(value: object, indent: int | None) -> None:
    text = json.dumps([value], ensure_ascii=bool(indent), indent=indent)
    assert scan(JsonScanner(), [text + "]x"]) == scan(JsonScanner(), list(text + "]x")) == (len(text), text, True)


@given(st.text(alphabet='{}[]",:1 -0.e+truefalsn\\u', max_size=12))
@settings(max_examples=200)
def test_text_that_may_be_json(text: str) -> None:
    scanned = scan(JsonScanner(), [text])
    assert scanned == scan(JsonScanner(), list(text))
    passed, _, done = scanned
    try:
        json.loads(text)
    except ValueError:
        assert not done or text[passed:].strip()
    else:
        assert passed == len(text) or done


def test_json_nests_within_bounds() -> None:
    assert scan(JsonScanner(), ["[" * (MAX_DEPTH + 1)]) == (MAX_DEPTH, "[" * MAX_DEPTH, False)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), VALUES, max_size=3))
@settings(max_examples=40)
def test_arguments_in_pythons_notation(arguments: dict[str, object]) -> None:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) + ")"
    scanned = scan(ArgumentsScanner(), [text])
    assert scanned == scan(ArgumentsScanner(), list(text))
    passed, out, done = scanned
    assert (passed, done) == (len(text), True)
    assert json.loads(out) == ast.literal_eval(repr(arguments))
