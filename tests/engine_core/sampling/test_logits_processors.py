"""Penalties against transformers' processor and the plain formula, as output grows and drafts come and go; and bans."""

import random

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from engine_core.request import SamplingParams
from engine_core.sampling.base import SamplingOps
from engine_core.sampling.logits_processors import Penalties, ProcessorSetup, SamplingRows
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.torch_ops import TorchOps
from tests.engine_core.sampling.test_sampler import EOS, Rows, Sampled

VOCAB = 50
CHOSEN = [(1.3, 0.0, 0.0), (0.7, 0.5, -0.5), (1.0, -0.3, 1.0), (2.0, 2.0, 2.0)]
"""Repetition, frequency and presence penalty of each sequence."""


def expected(logits: torch.Tensor, prompt: list[int], output: list[int], penalties: tuple[float, ...]) -> torch.Tensor:
    repetition, frequency, presence = penalties
    ids = torch.tensor([prompt + output])
    row = RepetitionPenaltyLogitsProcessor(repetition)(ids, logits.clone().unsqueeze(0))[0]
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB)
    return row - frequency * counts - presence * (counts > 0)


@pytest.mark.parametrize("ops", [NumpyOps(VOCAB), TorchOps()], ids=["numpy", "torch"])
def test_logits_of_growing_sequences(ops: SamplingOps) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(VOCAB) for _ in range(8)] for _ in CHOSEN]
    outputs = [[rng.randrange(VOCAB) for _ in range(length)] for length in (0, 1, 5, 30)]
    processor = Penalties(ProcessorSetup(len(CHOSEN), VOCAB, ()))
    for slot, (repetition, frequency, presence) in enumerate(CHOSEN):
        params = SamplingParams(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
        applies = processor.add(slot, params)
        assert applies is not None
        assert applies.reads_tokens
    tokens = np.zeros((len(CHOSEN), 400), np.int32)
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        drafts = [[rng.randrange(VOCAB) for _ in range(rng.choice([0, 0, 1, 4]))] for _ in CHOSEN]
        rows = [(slot, count) for slot in range(len(CHOSEN)) for count in range(1 + len(drafts[slot]))]
        for slot, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            known = [*prompt, *output, *drafts[slot]]
            tokens[slot, : len(known)] = known
        # Two rows between them and behind them are of sequences without penalties.
        chosen = np.arange(len(rows)) + (np.arange(len(rows)) > 2)
        slots, counts = np.zeros((2, len(rows) + 2), np.int64)
        slots[chosen], counts[chosen] = np.array(rows).T
        lengths = np.array([8 + len(output) for output in outputs])[slots] + counts
        sampling_rows = SamplingRows(slots, tokens, lengths, np.full(len(slots), 8), counts)
        logits = torch.randn(len(slots), VOCAB, generator=generator)
        penalized = logits.clone()
        processor.apply(ops, ops.array(penalized), sampling_rows, chosen)
        others = sorted(set(range(len(slots))) - set(chosen.tolist()))
        assert torch.equal(penalized[others], logits[others])
        for row, (slot, count) in zip(chosen.tolist(), rows, strict=True):
            output = outputs[slot] + drafts[slot][:count]
            torch.testing.assert_close(penalized[row], expected(logits[row], prompts[slot], output, CHOSEN[slot]))
        for slot, output in enumerate(outputs):
            output += drafts[slot][: rng.randint(0, len(drafts[slot]))]  # some are accepted
            output.append(rng.randrange(VOCAB))


def test_allowed_tokens_win_where_bans_leave_nothing() -> None:
    params = SamplingParams(temperature=1.0, allowed_token_ids=(EOS, 4), min_tokens=5, bad_words_token_ids=((4,),))
    rows = Rows([params] * 20, vocab=50)
    rows.lengths = rows.prompts
    assert set(rows.sample(list(range(20))).token_ids.tolist()) <= {EOS, 4}


WAYS = [
    {"temperature": 0.0},
    {},
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.3},
    {"top_k": 4, "top_p": 0.9, "repetition_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {1: 2.0}},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("allowed", [None, (1, 4, 6)])
def test_bad_words_of_several_tokens_can_leave_one_token_or_none(way: dict, allowed: tuple[int, ...] | None) -> None:
    """After token 3 every token that may be drawn ends a bad word: then the draw is made as if there were none."""
    vocab = 8
    drawable = range(vocab) if allowed is None else allowed

    def draws(words: list[tuple[int, ...]]) -> Sampled:
        options = {**way, "allowed_token_ids": allowed, "bad_words_token_ids": tuple(words), "logprobs": 2}
        rows = Rows([SamplingParams(seed=seed, **options) for seed in range(20)], vocab)
        rows.tokens[:, :] = 3
        return rows.sample(list(range(20)))

    free = draws([])
    assert len(set(free.token_ids.tolist())) > 1
    nothing_left = draws([(3, token) for token in drawable])
    assert nothing_left.token_ids.tolist() == free.token_ids.tolist()
    assert nothing_left.logprobs == free.logprobs
    for kept in drawable:
        one_left = draws([(3, token) for token in drawable if token != kept])
        assert one_left.token_ids.tolist() == [kept] * 20
