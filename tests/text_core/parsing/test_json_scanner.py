"""Values that come in pieces, against Python's own reader of JSON."""

from __future__ import annotations

import json

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
