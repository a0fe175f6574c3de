"""Decoders that pool, beside transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.engine_core.engines import started

from .checkpoints import hidden_states, lay_out, pooled, random_model, texts

INPUTS = texts([1, 5, 40, 200])


def test_the_last_hidden_state_is_the_vector(tmp_path: Path) -> None:
    model = random_model(tmp_path)
    lay_out(tmp_path)
    with started(tmp_path) as engine:
        found = pooled(engine, INPUTS)
    for tokens, values in zip(INPUTS, found, strict=True):
        expected = torch.nn.functional.normalize(hidden_states(model, tokens)[-1:], dim=1)
        np.testing.assert_allclose(values, expected.numpy(), atol=2e-6)
