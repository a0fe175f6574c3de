"""Arguments of Gemma 4 that come in pieces: long words, and texts in ordinary quotes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text_core.parsing.values import VALUES, scan
from text_core.parsing.gemma_scanner import GemmaScanner

QUOTE = '<|"|>'

LONG = [
    ("a:" + "1" * 256 + "}", {"a": int("1" * 256)}),
    ("a:" + "1" * 257 + "}", {"a": "1" * 257}),
    ("k" * 300 + ": " + "x y" * 100 + " \n,n:5}", {"k" * 300: "x y" * 100, "n": 5}),
    ("a:" + "x" * 300 + " " * 256 + "}", {"a": "x" * 300}),
    ("a:5" + " " * 300 + "y" + " " * 300 + "}", {"a": "5" + " " * 300 + "y" + " " * 44}),
]


@pytest.mark.parametrize("number", range(len(LONG)))
def test_long_words_are_texts(number: int) -> None:
    text, arguments = LONG[number]
    known = ["".join(GemmaScanner(QUOTE).feed(text[:at], 0)[1]) for at in range(len(text) + 1)]
    assert json.loads(known[-1]) == arguments
    for at in range(len(text)):
        scanner = GemmaScanner(QUOTE)
        assert scanner.feed(text[:at], 0) == (at, known[at])
        assert scanner.feed(text[at:], 0) == (len(text) - at, known[-1].removeprefix(known[at]))


@pytest.mark.parametrize("beginning", ["a:" + "x" * 300, "k" * 300, 'a:"x'])
def test_no_text_is_lost_where_a_call_breaks_off(beginning: str) -> None:
    for pieces in ([beginning + "\ud800"], [*beginning, "\ud800"], [beginning[:99], beginning[99:] + "\ud800"]):
        passed, out, done = scan(GemmaScanner(QUOTE), pieces)
        assert (passed, done) == (len(beginning), False)
        assert out.rstrip('"').endswith(beginning[-300:].removeprefix('a:"'))


@given(st.dictionaries(st.text(), VALUES, max_size=3), st.booleans())
@settings(max_examples=60)
def test_arguments_in_ordinary_quotes(arguments: dict[str, object], ascii_only: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)[1:]
    scanned = scan(GemmaScanner(QUOTE), [text])
    assert scanned == scan(GemmaScanner(QUOTE), list(text))
    passed, out, done = scanned
    assert (passed, done) == (len(text), True)
    assert json.loads(out) == arguments


@given(st.dictionaries(st.text(), st.text(), max_size=3))
@settings(max_examples=40)
def test_texts_in_pythons_quotes(arguments: dict[str, str]) -> None:
    scanned = scan(GemmaScanner(QUOTE), list(repr(arguments)[1:]))
    assert json.loads(scanned[1]) == arguments
