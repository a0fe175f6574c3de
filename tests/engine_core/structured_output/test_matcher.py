"""A matcher against llguidance's own masks, from any split of its tokens, with drafts, and where it fails."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from engine_core.structured_output import compiler as module
from engine_core.structured_output import matcher as matching
from engine_core.structured_output.matcher import ALL, Bits, Matcher
from tests.engine_core.structured_output.grammars import (
    ANSWER,
    EOS,
    PERSON,
    VOCAB,
    compiler,
    ids_of,
    new_compiler,
    tokens_in,
)

WORDS = -(-VOCAB // 32)
IDS = [*ids_of(ANSWER), EOS]
BOMB = "start: (/[a-z]*a[a-z]{60}/ | /[a-z]*b[a-z]{50}/ | /[a-z]*c[a-z]{40}/) start"
"""Whose lexer has more and more states."""

WIDE = 'start: "x" (' + " | ".join(f'"x{number}" start' for number in range(60)) + ")"
"""In which many ways go on behind an x."""


def reference() -> list[set[int]]:
    """What llguidance allows before each token of the answer."""
    matcher = LLMatcher(compiler()._tokenizer, PERSON)
    masks = []
    for token in IDS:
        masks.append(tokens_in(np.frombuffer(matcher.compute_bitmask(), np.uint32)))
        matcher.consume_token(token)
    return masks


def allowed(matcher: Matcher, *drafts: int) -> Bits:
    bits = np.zeros((1 + len(drafts), WORDS), np.uint32)
    matcher.allow(bits, drafts)
    return bits


def test_masks_are_llguidances_from_any_split_and_behind_any_drafts() -> None:
    expected = reference()
    assert expected[-1] == {EOS}
    for known in range(len(IDS)):
        matcher = compiler().matcher(PERSON)
        matcher.advance(IDS[: known // 2])
        matcher.advance(IDS[known // 2 : known])
        for count in {0, min(1, len(IDS) - known - 1), len(IDS) - known - 1}:
            rows = allowed(matcher, *IDS[known : known + count])
            assert [tokens_in(row) for row in rows] == expected[known : known + 1 + count]
        assert matcher.failed_at is None
        assert matcher.num_tokens == known


def test_behind_a_draft_that_may_not_come_anything_may() -> None:
    matcher = compiler().matcher(PERSON)
    wrong = ids_of("zebra")[0]
    rows = allowed(matcher, IDS[0], wrong, IDS[1])
    assert [tokens_in(row) for row in rows[:2]] == reference()[:2]
    assert (rows[2:] == ALL).all()
    behind_the_end = allowed(matcher, *IDS, EOS)
    assert tokens_in(behind_the_end[len(IDS) - 1]) == {EOS}
    assert (behind_the_end[len(IDS) :] == ALL).all()
    assert tokens_in(allowed(matcher)[0]) == reference()[0]


def test_forced_tokens_are_those_of_the_only_text() -> None:
    """And an eos token is never one of them."""
    matcher, forced = compiler().matcher(PERSON), ids_of('{"name": "')
    assert matcher.forced(100) == forced
    assert matcher.forced(3) == forced[:3]
    assert matcher.forced(0) == []
    matcher.advance(forced)
    assert matcher.forced(100) == []
    matcher.advance(ids_of('bob"'))
    assert matcher.forced(100) == ids_of(', "age": ')[: len(matcher.forced(100))] != []
    matcher.advance([*ids_of(', "age": 123'), *ids_of("}")])
    assert matcher.forced(100) == []
    assert tokens_in(allowed(matcher)[0]) == {EOS}
    matcher.advance([EOS])
    assert matcher.forced(100) == []
    assert matcher.failed_at is None


@pytest.mark.parametrize(
    ("grammar", "output", "position", "problem"),
    [
        (PERSON, "{}", 1, "does not admit token"),
        ('start: "a" X\nX: /b/ & /c/', "a", 1, "no token can follow: the grammar has a dead end here"),
        (BOMB, "abc" * 8, None, "the grammar cannot be followed: lexer error: too many states"),
        (WIDE, "xx", 0, "the grammar cannot be followed: Current row has 61 items; max is 50"),
    ],
    ids=["another token", "dead end", "limit of the lexer", "limit of the parser"],
)
def test_failures(
    grammar: str, output: str, position: int | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported with their place, and nothing raises from then on."""
    limits = LLParserLimits(max_lexer_states=1000, max_items_in_row=50, verbose_errors=False)
    monkeypatch.setattr(module, "parser_limits", lambda vocab_size, _grammar: limits)
    matcher = new_compiler().matcher(grammar)
    ids = ids_of(output)
    for token in ids:
        allowed(matcher)
        matcher.advance([token])
    rows = allowed(matcher, *ids)
    assert matcher.failed_at is not None
    assert position in (None, matcher.failed_at)
    assert problem in matcher.problem
    assert "verbose" not in matcher.problem
    assert (rows[max(0, matcher.failed_at - matcher.num_tokens) :] == ALL).all()
    assert matcher.forced(5) == []
    matcher.advance(ids)
    assert matcher.num_tokens == 2 * len(ids)


def test_time_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that takes a second for each mask, and drops each grammar at once, admits what any other does."""
    own, expected = new_compiler(), reference()
    monkeypatch.setattr(matching.time, "thread_time", itertools.count().__next__)
    for _ in range(3):
        matcher = own.matcher(PERSON)
        for token, admitted in zip(IDS, expected, strict=True):
            assert tokens_in(allowed(matcher)[0]) == admitted
            matcher.advance([token])
        assert matcher.failed_at is None
        own.compile(PERSON)


def test_a_text_of_the_greatest_length_can_be_written() -> None:
    """Of characters that are counted, each of which takes several states of the lexer."""
    matcher = new_compiler().matcher('start: %json {"type": "string", "maxLength": 16384}')
    quote, signs = ids_of('"'), ids_of("漢é語x")
    matcher.advance(quote)
    for _ in range(16384 // 4):
        allowed(matcher)
        matcher.advance(signs)
    assert (matcher.failed_at, matcher.problem) == (None, "")
    assert tokens_in(allowed(matcher)[0]) == set(quote)
