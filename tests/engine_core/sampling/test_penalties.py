"""Penalized logits against transformers' processor and the plain formula, while output grows."""

import random

import numpy as np
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from engine_core.sampling.logits_processors import Penalties, TokenCounts, apply_penalties

VOCAB = 50


def expected(logits: torch.Tensor, prompt: list[int], output: list[int], penalties: tuple[float, ...]) -> torch.Tensor:
    repetition, frequency, presence = penalties
    ids = torch.tensor([prompt + output])
    row = RepetitionPenaltyLogitsProcessor(repetition)(ids, logits.clone().unsqueeze(0))[0]
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB)
    return row - frequency * counts - presence * (counts > 0)


def test_logits_of_growing_sequences() -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(VOCAB) for _ in range(8)] for _ in range(4)]
    outputs = [[rng.randrange(VOCAB) for _ in range(length)] for length in (0, 1, 5, 30)]
    chosen = [(1.3, 0.0, 0.0), (0.7, 0.5, -0.5), (1.0, -0.3, 1.0), (2.0, 2.0, 2.0)]
    counts = [TokenCounts(np.array(p, np.int32), np.array(o, np.int32)) for p, o in zip(prompts, outputs, strict=True)]
    columns = [np.array(column, np.float32) for column in zip(*chosen, strict=True)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        logits = torch.randn(6, VOCAB, generator=generator)
        penalized = logits.clone()
        rows = np.array([0, 2, 3, 5])
        apply_penalties(penalized.numpy(), rows, counts, Penalties(*columns))
        assert torch.equal(penalized[[1, 4]], logits[[1, 4]])
        for row, prompt, output, penalties in zip(rows, prompts, outputs, chosen, strict=True):
            torch.testing.assert_close(penalized[row], expected(logits[row], prompt, output, penalties))
        for sequence, output in zip(counts, outputs, strict=True):
            output.append(rng.randrange(VOCAB))
            sequence.add(output[-1])
