"""Penalized logits against transformers' processor and the plain formula, while output grows and drafts come and go."""

import random

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from engine_core.request import SamplingParams
from engine_core.sampling.base import SamplingOps
from engine_core.sampling.logits_processors import Penalties, SamplingRows
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.torch_ops import TorchOps

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
    processor = Penalties(len(CHOSEN), VOCAB, [])
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
