"""Masks of grammars in batches: on their rows alone, with drafts, in parts, and with what else a request bans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from llguidance import LLParserLimits

from engine_core.request import SamplingParams
from engine_core.sampling.base import LEAST_LOGIT, SamplingOps
from engine_core.sampling.grammar_mask import GrammarMask
from engine_core.sampling.logits_processors import ProcessorSetup, SamplingRows
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.sampler import Sampler
from engine_core.sampling.torch_ops import TorchOps
from engine_core.structured_output import compiler as compiling
from tests.engine_core.structured_output.grammars import (
    ANSWER,
    EOS,
    PERSON,
    VOCAB,
    compiler,
    ids_of,
    new_compiler,
    text_of,
    tokens_in,
)
from text_core.grammar.constraints import OneOf
from text_core.grammar.grammar_text import grammar_of, with_parts

OPS = [NumpyOps(VOCAB), TorchOps()]
PROMPT = [7, 8, 9]
IDS = [*ids_of(ANSWER), EOS]


@pytest.fixture(params=OPS, ids=["numpy", "torch"])
def ops(request: pytest.FixtureRequest) -> SamplingOps:
    found: SamplingOps = request.param
    return found


def odd_logits(rows: int) -> torch.Tensor:
    logits = torch.randn(rows, VOCAB)
    logits[0, 3::7], logits[1, 5] = -torch.inf, torch.nan
    return logits


def test_allowed_logits_stay_and_others_are_banned(ops: SamplingOps) -> None:
    logits, chosen = odd_logits(5), np.array([0, 1, 3])
    bits = np.random.default_rng(1).integers(0, 2**32, (3, -(-VOCAB // 32)), np.uint32)
    expected = logits.clone()
    for row, words in zip(chosen.tolist(), bits, strict=True):
        for token in range(VOCAB):
            raised = torch.clamp(logits[row, token], min=LEAST_LOGIT)
            expected[row, token] = raised if token in tokens_in(words) else -torch.inf
    ops.mask(ops.array(logits), chosen, bits)
    assert torch.equal(logits.nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))


def rows_of(outputs: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]) -> SamplingRows:
    """All rows of sequences, one a slot."""
    tokens = np.zeros((len(outputs), 80), np.int32)
    for slot, (output, proposed) in enumerate(zip(outputs, drafts, strict=True)):
        known = [*PROMPT, *output, *proposed]
        tokens[slot, : len(known)] = known
    places = [(slot, count) for slot, proposed in enumerate(drafts) for count in range(1 + len(proposed))]
    slots, counts = np.array(places).T
    lengths = np.array([len(PROMPT) + len(output) for output in outputs])[slots] + counts
    return SamplingRows(slots, tokens, lengths, np.full(len(slots), len(PROMPT)), counts)


def metadata(*params: SamplingParams) -> SamplingMetadata:
    state = SamplingMetadata(ProcessorSetup(len(params), VOCAB, (EOS,), compiler()))
    for slot, each in enumerate(params):
        state.add(slot, each, 0, 0)
    return state


IN_GRAMMAR = SamplingParams(temperature=0.0, grammar=PERSON)


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 50])
def test_rows_and_their_drafts_are_masked_whatever_part_of_a_batch_they_are_in(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = metadata(IN_GRAMMAR, SamplingParams(temperature=0.0), IN_GRAMMAR)
    rows = rows_of([IDS[:3], IDS[:3], IDS[:12]], [IDS[3:7], IDS[3:4], [IDS[12], 300, 301]])
    everything = state.allowed(rows)
    assert (everything[5:7] == 0xFFFF_FFFF).all()
    for row, known in [(0, 3), (3, 6), (4, 7), (7, 12), (8, 13)]:
        matcher = compiler().matcher(PERSON)
        matcher.advance(IDS[:known])
        one = np.zeros((1, everything.shape[1]), np.uint32)
        matcher.allow(one)
        assert tokens_in(everything[row]) == tokens_in(one[0])
    monkeypatch.setattr(NumpyOps, "elements_at_once", rows_at_once * VOCAB)
    logits = torch.randn(len(rows.slots), VOCAB)
    sampled = Sampler(state, NumpyOps(VOCAB)).sample(logits.clone(), rows).token_ids
    # The same tokens as by the bits, with which a kernel finds them without logits in memory.
    assert state.greedy_in_grammar(rows.slots)
    for row, token in enumerate(sampled.tolist()):
        assert token == max(sorted(tokens_in(everything[row])), key=lambda each: float(logits[row, each]))


def drawn(output: list[int], **options: object) -> int:
    """With token 70 the likeliest, then eos."""
    logits = torch.zeros(1, VOCAB)
    logits[0, [70, EOS, 71]] = torch.tensor([9.0, 8.0, 7.0])
    params = SamplingParams(temperature=0.0, grammar='start: "a" /[bc]*/', **options)  # type: ignore[arg-type]
    rows = rows_of([output], [[]])
    return int(Sampler(metadata(params), NumpyOps(VOCAB)).sample(logits, rows).token_ids[0])


def test_bans_within_a_grammar() -> None:
    a, b, c = (ids_of(letter)[0] for letter in "abc")
    assert (b, c) == (70, 71)
    assert drawn([a]) == b
    assert drawn([a], bad_words_token_ids=((b,),)) == EOS
    assert drawn([a], bad_words_token_ids=((a, b),), min_tokens=3, ignore_eos=True) == c, "its eos ends it all the same"
    assert drawn([a], bad_words_token_ids=((b,), (c,)), min_tokens=3) in (b, c, EOS)
    assert drawn([], bad_words_token_ids=((a,),)) == a, "the only token"
    assert drawn([a], logit_bias={c: 5.0}) == c
    assert drawn([a], logit_bias={99: 100.0}) == b
    assert drawn([a], repetition_penalty=2.0, presence_penalty=1.0) == b


def test_what_drafts_led_to_is_forgotten_unless_they_are_accepted() -> None:
    grammar = 'start: "a" X | "b" "c"\nX: /b/ & /c/'  # nothing can follow the a
    a, b, c = (ids_of(letter)[0] for letter in "abc")
    state = metadata(SamplingParams(temperature=0.0, grammar=grammar))
    mask: GrammarMask = state.grammar_mask
    rows = rows_of([[]], [[a, b]])
    allowed = state.allowed(rows)
    assert tokens_in(allowed[0]) >= {a, b}
    assert (allowed[1:] == 0xFFFF_FFFF).all()
    assert mask.following(0, np.array([b]), 5).drafts == [c]
    mask.remove(0)
    state.add(0, SamplingParams(temperature=0.0, grammar=grammar), 0, 0)
    state.allowed(rows)
    failed = mask.following(0, np.array([a, b]), 5)
    assert (failed.failed_at, failed.drafts) == (1, [])
    assert "dead end" in failed.problem


def test_a_grammar_that_cannot_be_compiled_fails_its_own_sequence() -> None:
    state = metadata(SamplingParams(temperature=0.0, grammar="start: ("), IN_GRAMMAR)
    allowed = state.allowed(rows_of([[], []], [[], []]))
    assert (allowed[0] == 0xFFFF_FFFF).all()
    assert tokens_in(allowed[1]) < set(range(VOCAB))
    failed = state.grammar_mask.following(0, np.array([5]), 5)
    assert failed.failed_at == 0
    assert "Expected token" in failed.problem
    assert state.grammar_mask.following(1, np.array(IDS[:1]), 2).drafts == IDS[1:3]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("text", ["<tool>", "a <s> b", "see <|im_end|>", "</s>", "plain"])
def test_a_text_that_must_come_is_written_though_it_spells_a_special_token(text: str, parts: bool) -> None:
    grammar = grammar_of(OneOf((text,)))
    params = SamplingParams(temperature=0.0, grammar=with_parts("start: @a | @b", {"a": grammar, "b": grammar}))
    state = metadata(params if parts else SamplingParams(temperature=0.0, grammar=grammar))
    output: list[int] = []
    while len(output) < 40:
        following = state.grammar_mask.following(0, np.array(output, np.int32), 3)
        assert following.problem == ""
        allowed = tokens_in(state.allowed(rows_of([output], [following.drafts]))[0])
        assert set(following.drafts[:1]) <= allowed
        token = max(allowed)
        output.append(token)
        if token == EOS:
            break
    assert text_of(output) == text


def test_a_token_that_is_any_other_than_one_is_no_end_of_the_answer() -> None:
    state = metadata(SamplingParams(temperature=0.0, grammar='start: <[^5]> "a" | <[^5]> <[4]> "b"'))
    assert EOS in tokens_in(state.allowed(rows_of([[]], [[]]))[0]), "the grammar names it"
    state = metadata(SamplingParams(temperature=0.0, grammar='start: <[^5]> "a"?'))
    first, second = (tokens_in(state.allowed(rows_of([output], [[]]))[0]) for output in ([], [70]))
    assert first >= {3, 6, 70}
    assert first.isdisjoint({5, EOS})
    assert second == {EOS, *ids_of("a")}


def test_a_rank_that_follows_marks_the_slot_alone() -> None:
    state = SamplingMetadata(ProcessorSetup(1, VOCAB, (EOS,)))
    state.add(0, SamplingParams(temperature=0.0, grammar=PERSON), 0, 0)
    assert not state.greedy(np.array([0]))
    assert not state.grammar_mask.follows(0)
    assert (state.allowed(rows_of([[]], [[]])) == 0xFFFF_FFFF).all()


def test_sequences_that_fill_the_lexer_of_a_grammar_fail_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is the one that it is alone, or fails where it does alone."""
    wide = r"start: /(?s:.*a.{40})*/"  # every text is admitted, and most have a state of their own
    texts = [ids_of("".join(np.random.default_rng(seed).choice(list("ab "), 60))) for seed in range(6)]
    monkeypatch.setattr(compiling, "parser_limits", lambda vocab_size, _grammar: LLParserLimits(max_lexer_states=600))

    def follow(state: SamplingMetadata, slot: int, count: int) -> tuple[set[int], int | None]:
        outputs = [texts[slot][:count] if slot == each else [] for each in range(len(texts))]
        bits = state.grammar_mask.allowed(rows_of(outputs, [[]] * len(texts)), np.array([slot]))
        return tokens_in(bits[slot]), state.grammar_mask.following(slot, np.array(outputs[slot]), 5).failed_at

    def new_state() -> SamplingMetadata:
        state = SamplingMetadata(ProcessorSetup(len(texts), VOCAB, (EOS,), new_compiler()))
        for slot in range(len(texts)):
            state.add(slot, SamplingParams(grammar=wide), 0, 0)
        return state

    shared = new_state()
    for count in range(12):
        for slot in range(len(texts)):
            admitted, failed_at = follow(shared, slot, count)
            assert failed_at is None
            assert texts[slot][count] in admitted
    assert follow(shared, 0, 12) == follow(new_state(), 0, 12)


def test_a_sequence_that_fills_a_lexer_alone_fails_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on to, whatever is sampled behind."""
    monkeypatch.setattr(compiling, "parser_limits", lambda vocab_size, _grammar: LLParserLimits(max_lexer_states=20))
    state = SamplingMetadata(ProcessorSetup(1, VOCAB, (EOS,), new_compiler()))
    state.add(0, SamplingParams(grammar=r"start: /(?s:.*a.{40})*/"), 0, 0)
    for output in ([], ids_of("z")[:1]):
        assert (state.grammar_mask.allowed(rows_of([output], [[]]), np.array([0])) == 0xFFFF_FFFF).all()
        following = state.grammar_mask.following(0, np.array(output), 5)
        assert following.failed_at == 0
        assert "too many states" in following.problem
