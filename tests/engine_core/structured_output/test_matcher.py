"""A matcher against llguidance's own masks, from any split of its tokens, with drafts, and where it fails."""

from __future__ import annotations

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from engine_core.structured_output import compiler as module
from engine_core.structured_output.matcher import ALL, FREE_SECONDS, SECONDS_PER_TOKEN, Bits, Matcher, Pace
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
        (BOMB, "abc" * 8, None, "too many states"),
    ],
    ids=["another token", "dead end", "limit"],
)
def test_failures(
    grammar: str, output: str, position: int | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported with their place, and nothing raises from then on."""
    monkeypatch.setattr(module, "_limits", lambda: LLParserLimits(max_lexer_states=1000, verbose_errors=False))
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


def test_a_grammar_that_takes_too_long_ends_all_its_sequences_and_no_others() -> None:
    pace, grammar = Pace(), 'start: "a"*'
    [token] = ids_of("a")
    slow = [Matcher(llguidance_matcher(grammar), frozenset([EOS]), pace=pace) for _ in range(2)]
    other = compiler().matcher(grammar)
    for matcher in (*slow, other):
        matcher.advance([token] * 40)
        assert matcher.failed_at is None
    pace.seconds = FREE_SECONDS + 2 * SECONDS_PER_TOKEN * pace.tokens
    for matcher in slow:
        matcher.advance([token])
        assert (matcher.failed_at, matcher.problem) == (41, pace.problem)
    assert "ms per token" in pace.problem
    other.advance([token])
    assert other.failed_at is None


def test_a_replay_ends_where_the_grammar_has_become_too_slow() -> None:
    matcher = Matcher(llguidance_matcher('start: "a"*'), frozenset([EOS]), pace=(pace := Pace()))
    pace.seconds = 10 * FREE_SECONDS
    matcher.advance(ids_of("a") * 1_000)
    assert matcher.failed_at is not None
    assert matcher.failed_at < 20
    assert matcher.num_tokens == 1_000


def llguidance_matcher(grammar: str) -> LLMatcher:
    return LLMatcher(compiler()._tokenizer, grammar, log_level=0)
