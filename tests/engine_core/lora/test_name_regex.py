"""Names match as they do with ``re``, and in bounded steps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.lora.name_regex import NameRegex, NameRegexError, Steps

ATOMS = st.sampled_from(
    ["a", "b", "1", "_", ".", r"\.", r"\d", r"\w", r"\W", "[ab]", "[^a.]", "[a-c1]", "[]a-]", "^", "$", r"\A"]
)
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{,2}", "{1,}", "{a}", "{}", "{,}"])


def _quantified(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(st.sampled_from(["({})", "(?:{})"]), inner).map(lambda each: each[0].replace("{}", each[1]))
    parts = st.tuples(groups, QUANTIFIERS).map("".join)
    return st.one_of(
        st.lists(parts, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.tuples(inner, inner).map("".join),
    )


PATTERNS = st.recursive(st.tuples(ATOMS, QUANTIFIERS).map("".join), _quantified, max_leaves=8)


@settings(deadline=None, max_examples=100)
@given(PATTERNS, st.lists(st.text("ab1_.X", max_size=8), min_size=1, max_size=4))
def test_names_match_as_with_re(pattern: str, names: list[str]) -> None:
    try:
        expected = re.compile(pattern)
    except re.error:  # an anchor that is repeated is none there, too
        with pytest.raises(NameRegexError):
            NameRegex(pattern, Steps(500_000))
        return
    try:
        found = NameRegex(pattern, Steps(500_000))
    except NameRegexError as error:
        assert "anchor that is repeated" in str(error)  # noqa: PT017 - which re allows of groups alone
        return
    for name in names:
        assert found.matches(name) == (expected.match(name) is not None), (pattern, name)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        r"(?=a)b",
        r"(?!a)b",
        r"(?<=a)b",
        r"a*+",
        r"a++",
        r"(?>a)",
        r"(?i)a",
        r"(?i:a)",
        r"\ba",
        r"\x61",
        "[а-я]",
        "(?P=a)",
    ],
)
def test_other_syntax_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(NameRegexError, match="is not supported"):
        NameRegex(pattern, Steps(500_000))


@pytest.mark.parametrize("pattern", ["(", ")", "[a", "a**", "*a", "a{3,2}", "\\", "{2}", "(?P<a"])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(NameRegexError):
        NameRegex(pattern, Steps(500_000))


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a" * 10_001, "longer than 10000 characters"),
        ("(a{100}){100}", "larger than 5000"),
        ("a{99999}", "larger than 5000"),
        ("((){9999}){9999}", "steps"),
        ("(" * 51 + ")" * 51, "more than 50 groups"),
    ],
)
def test_expressions_have_bounds(pattern: str, problem: str) -> None:
    with pytest.raises(NameRegexError, match=problem):
        NameRegex(pattern, Steps(10_000))


@pytest.mark.parametrize("pattern", ["[" + "a" * 9_990 + "]", "a{" * 2_000 + "}"])
def test_reading_an_expression_takes_steps(pattern: str) -> None:
    """So that many of them, long and without effect, cannot take more time than others."""
    steps = Steps(500_000)
    NameRegex(pattern, steps)
    assert 500_000 - steps.left > len(pattern)


def test_what_takes_others_forever_takes_few_steps() -> None:
    steps = Steps(500_000)
    assert not NameRegex(r"(a*)*(a|aa)*b", steps).matches("a" * 500)
    assert 500_000 - steps.left < 20_000


def test_steps_are_those_of_all_expressions_together() -> None:
    steps = Steps(30_000)
    patterns = [NameRegex("(a|b)*a" + "(a|b)" * 300, steps) for _ in range(5)]
    with pytest.raises(NameRegexError, match="steps"):
        _ = [each.matches("ab" * 200) for each in patterns]
