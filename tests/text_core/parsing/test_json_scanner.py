"""Values that come in pieces, against Python's own reader of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text_core.parsing.values import VALUES, scan
from text_core.parsing.json_scanner import MAX_DEPTH, JsonScanner


@given(VALUES, st.sampled_from([None, 1]))
@settings(max_examples=30)
def test_json_ends_where_its_value_ends(value: object, indent: int | None) -> None:
    text = json.dumps([value], ensure_ascii=bool(indent), indent=indent)
    assert scan(JsonScanner(), [text + "]x"]) == scan(JsonScanner(), list(text + "]x")) == (len(text), text, True)


@given(st.text(alphabet='{}[]",:1 -0.e+truefalsn\\u', max_size=12))
@settings(max_examples=200)
def test_text_that_may_be_json(text: str) -> None:
    scanned = scan(JsonScanner(repairs_escapes=False), [text])
    assert scanned == scan(JsonScanner(repairs_escapes=False), list(text))
    passed, _, done = scanned
    try:
        json.loads(text)
    except ValueError:
        assert not done or text[passed:].strip()
    else:
        assert passed == len(text) or done
    repaired = scan(JsonScanner(), [text])
    assert repaired == scan(JsonScanner(), list(text))
    if done:
        assert repaired == scanned
    elif repaired[2]:
        json.loads(repaired[1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'["C:\Users\new", "\d+\.\u006"]', [r"C:\Users" + "\new", r"\d+\.\u006"]),
        (r'{"\Users": "\u6水\uu\u00e9\\"}', {r"\Users": r"\u6水\uu" + "é\\"}),
        ('["\\\n\\\x01\\\'"]', ["\\\n\\\x01\\'"]),
    ],
)
def test_a_backslash_that_begins_no_escape_is_text(text: str, value: object) -> None:
    passed, out, done = scan(JsonScanner(), [text])
    assert (passed, done) == (len(text), True)
    assert json.loads(out) == value
    for at in range(len(text)):
        scanner = JsonScanner()
        first, second = scanner.feed(text[:at], 0), scanner.feed(text[at:], 0)
        assert (first[0], second[0], first[1] + second[1]) == (at, len(text) - at, out)


def test_json_nests_within_bounds() -> None:
    assert scan(JsonScanner(), ["[" * (MAX_DEPTH + 1)]) == (MAX_DEPTH, "[" * MAX_DEPTH, False)
