"""Banned repetitions against transformers' processor on the window: as output grows, with drafts, from any token."""

import random

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from engine_core.request import NoRepeatNgram, SamplingParams
from engine_core.sampling.base import SamplingOps
from engine_core.sampling.logits_processors import ProcessorSetup, SamplingRows
from engine_core.sampling.no_repeat_ngram import NoRepeatNgrams
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.torch_ops import TorchOps
from tests.engine_core.sampling.test_sampler import Rows

VOCAB = 20
RULES = [
    NoRepeatNgram(1, 3),
    NoRepeatNgram(1, 1),
    NoRepeatNgram(2, 2),
    NoRepeatNgram(2, 9, frozenset({0, 3})),
    NoRepeatNgram(3, 20),
    NoRepeatNgram(4, 65536, frozenset({1})),
    NoRepeatNgram(7, 7),
    NoRepeatNgram(12, 60, frozenset({0, 1})),
]


def banned(rule: NoRepeatNgram, output: list[int]) -> set[int]:
    """By transformers' processor, which sees the window alone, as vLLM's for DeepSeek-OCR does."""
    window = torch.tensor([output[-rule.window_size :]], dtype=torch.int64)
    if window.shape[1] + 1 < rule.ngram_size:
        return set()
    row = NoRepeatNGramLogitsProcessor(rule.ngram_size)(window, torch.zeros(1, VOCAB))[0]
    return set(torch.isinf(row).nonzero().flatten().tolist()) - rule.allowed_token_ids


def processor_of(rules: list[NoRepeatNgram]) -> NoRepeatNgrams:
    processor = NoRepeatNgrams(ProcessorSetup(len(rules), VOCAB, ()))
    for slot, rule in enumerate(rules):
        applies = processor.add(slot, SamplingParams(no_repeat_ngram=rule))
        assert applies is not None
        assert applies.reads_tokens
    return processor


def ban(processor: NoRepeatNgrams, ops: SamplingOps, texts: list[list[list[int]]], prompt: int) -> list[set[int]]:
    """What is banned behind each of the drafts of each slot; ``texts``: by slot, known tokens and drafts."""
    tokens = np.full((len(texts), 400), 17, np.int32)
    rows = []
    for slot, (known, drafts) in enumerate(texts):
        tokens[slot, : len(known) + len(drafts)] = [*known, *drafts]
        rows += [(slot, len(known) + count, count) for count in range(1 + len(drafts))]
    slots, lengths, counts = np.array(rows).T
    sampling_rows = SamplingRows(slots, tokens, lengths, np.full(len(rows), prompt), counts)
    logits = torch.zeros(len(rows), VOCAB)
    processor.apply(ops, ops.array(logits), sampling_rows, np.arange(len(rows)))
    return [set(torch.isinf(row).nonzero().flatten().tolist()) for row in logits]


@pytest.mark.parametrize(
    ("ops", "alphabet"),
    [
        pytest.param(ops, alphabet, id=f"{name} {alphabet}", marks=[] if alphabet == shown else pytest.mark.wide)
        for name, ops, shown in [("numpy", NumpyOps(VOCAB), 2), ("torch", TorchOps(), 4)]
        for alphabet in (2, 4, 12)
    ],
)
def test_runs_of_growing_sequences(ops: SamplingOps, alphabet: int) -> None:
    rng = random.Random(alphabet)
    prompt = [rng.randrange(alphabet) for _ in range(5)]  # whose tokens do not count
    outputs = [[rng.randrange(alphabet) for _ in range(rng.choice([0, 1, 30]))] for _ in RULES]
    processor = processor_of(RULES)
    found = 0
    for step in range(60):
        drafts = [[rng.randrange(alphabet) for _ in range(rng.choice([0, 0, 1, 4]))] for _ in RULES]
        texts = [[[*prompt, *output], each] for output, each in zip(outputs, drafts, strict=True)]
        expected = [
            banned(rule, output + each[:count])
            for rule, output, each in zip(RULES, outputs, drafts, strict=True)
            for count in range(1 + len(each))
        ]
        assert ban(processor, ops, texts, prompt=5) == expected
        found += sum(map(len, expected))
        for slot, output in enumerate(outputs):
            output += drafts[slot][: rng.randint(0, len(drafts[slot]))]  # some are accepted
            output.append(rng.randrange(alphabet))
            if rng.random() < 0.1:  # preempted, or continued elsewhere
                processor.remove(slot)
                processor.add(slot, SamplingParams(no_repeat_ngram=RULES[slot]))
        assert not step or found
    assert found > 100


def test_a_rule_that_leaves_nothing_is_passed_over() -> None:
    rule = NoRepeatNgram(1, 100)
    [nothing, rest] = ban(processor_of([rule, rule]), NumpyOps(VOCAB), [[[*range(20)], []], [[*range(19)], []]], 0)
    assert nothing == set()
    assert rest == set(range(19))
    # What other parameters ban stays banned.
    params = SamplingParams(allowed_token_ids=(3, 4), bad_words_token_ids=((4,),), no_repeat_ngram=rule)
    rows = Rows([params] * 20, vocab=50)
    rows.tokens[:] = 3
    assert rows.sample(list(range(20))).token_ids.tolist() == [3] * 20


def test_a_rule_whose_window_is_shorter_than_a_run_does_nothing() -> None:
    processor = NoRepeatNgrams(ProcessorSetup(1, VOCAB, ()))
    assert processor.add(0, SamplingParams(no_repeat_ngram=NoRepeatNgram(3, 2))) is None
    assert processor.add(0, SamplingParams()) is None


@pytest.mark.parametrize("allowed", [frozenset(), frozenset({5})])
def test_the_longest_runs_and_windows(allowed: frozenset[int]) -> None:
    """In a loop runs of any length overlap; the sequence is resumed in it, and goes on."""
    rule = NoRepeatNgram(1024, 65536, allowed)
    loop = np.array([[5, 6, 7] * 800], np.int32)
    processor = processor_of([rule])
    for length in (1023, 1024, 1026, 1027, 1028, 1500, 2394, 2395, 2396, 2397):
        rows = SamplingRows(np.array([0]), loop, *map(np.array, ([length], [0], [0])))
        logits = torch.zeros(1, VOCAB)
        processor.apply(NumpyOps(VOCAB), NumpyOps(VOCAB).array(logits), rows, np.arange(1))
        following = {int(loop[0, length])} if length >= 1026 else set()  # the first 1,023 tokens come back at 3
        assert set(torch.isinf(logits[0]).nonzero().flatten().tolist()) == following - allowed
