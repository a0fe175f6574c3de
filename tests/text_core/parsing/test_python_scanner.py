"""Arguments in Python's notation that come in pieces, against Python's own reader of literals."""

from __future__ import annotations

import ast
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text_core.parsing.values import VALUES, scan
from text_core.parsing.python_scanner import ArgumentsScanner


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), VALUES, max_size=3))
@settings(max_examples=40)
def test_arguments_in_pythons_notation(arguments: dict[str, object]) -> None:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) + ")"
    scanned = scan(ArgumentsScanner(), [text])
    assert scanned == scan(ArgumentsScanner(), list(text))
    passed, out, done = scanned
    assert (passed, done) == (len(text), True)
    assert json.loads(out) == ast.literal_eval(repr(arguments))
