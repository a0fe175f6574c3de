"""Patterns with look-ahead, as libraries write them, say the same without it: compared by ``re``, text by text."""

from __future__ import annotations

import re
from itertools import product

import pytest

from text_core.grammar.look_ahead import without_look_ahead
from text_core.grammar.regex import conjuncts

SIGN = r"^(?!^[-+.]*$)[+-]?0*"
DECIMALS = [
    SIGN + r"\d*\.?\d*$",
    SIGN + r"\d*\.?\d{0,2}0*$",
    SIGN + r"(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d*\.\d*0*$)",
    SIGN + r"(?:\d{0,1}|(?=[\d.]{1,4}0*$)\d{0,1}\.\d{0,2}0*$)",
    SIGN + r"(?:\d{0,0}|(?=[\d.]{1,3}0*$)\d{0,0}\.\d{0,4}0*$)",
]
"""pydantic's: of any digits; of two places; of three digits; of three, two of them places; of two places alone."""
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"


@pytest.mark.parametrize("pattern", DECIMALS)
def test_decimals_have_a_digit_before_the_point(pattern: str) -> None:
    # where digits are counted, an integer may go on as any text; nobody can mean that
    original, written = re.compile(f"{pattern}$"), re.compile(without_look_ahead(pattern))
    texts = ["".join(letters) for length in range(7) for letters in product("+.01", repeat=length)]
    begins = re.compile(r"[+-]?\d")
    assert [
        text for text in texts if bool(written.match(text)) != bool(begins.match(text) and original.match(text))
    ] == []


@pytest.mark.parametrize(("pattern", "parts"), [(EMAIL, [*"a'.-@", "cc"]), (DURATION, ["P", "T", "1", *"YMDHSW.,"])])
def test_other_known_shapes(pattern: str, parts: list[str]) -> None:
    original, written = re.compile(pattern), re.compile(without_look_ahead(pattern))
    length = 6 if len(parts) < 8 else 4
    heads = ["", "a@a.cc"] if pattern == EMAIL else ["", "P1Y", "P1M", "P1DT1H", "PT1M"]
    texts = [
        head + "".join(letters) for head in heads for count in range(length) for letters in product(parts, repeat=count)
    ]
    assert [text for text in texts if bool(original.match(text)) != bool(written.match(text))] == []
    assert sum(map(bool, map(written.match, texts))) > 20


def test_look_aheads_at_the_beginning_are_patterns_of_their_own() -> None:
    assert conjuncts(r"^(?=.*[)\d])(?=(a|b))x$") == [r"^(?:.*[)\d])", "^(?:(a|b))", "^x$"]
    for pattern in ("a", "^(?=a)b|c", "^(?=a", "^(?=a)*b", "^" + "(?=a)" * 4 + "b"):
        assert conjuncts(pattern) == [pattern]
