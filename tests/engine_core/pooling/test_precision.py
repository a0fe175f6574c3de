"""Encoders in 16 bits and with quantized weights: near transformers', and the same bits alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine_core.engines import started

from .checkpoints import hidden_states, lay_out, pooled, texts
from .test_encoders import saved

INPUTS = texts([1, 5, 40, 200, 17])


@pytest.mark.parametrize("case", [pytest.param("modernbert", marks=pytest.mark.models), "bert"])
@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"dtype": "bfloat16"}, 0.999),
        ({"dtype": "float32", "quantization": "int8"}, 0.999),
        ({"dtype": "bfloat16", "quantization": "int4"}, 0.9),
    ],
)
def test_vectors_are_near_those_of_float32(case: str, options: Any, least: float, tmp_path: Path) -> None:
    model = saved(case, tmp_path)
    lay_out(tmp_path, {"pooling_mode": "mean"})
    with started(tmp_path, **options) as engine:
        found = pooled(engine, INPUTS)
        alone = [pooled(engine, [tokens])[0] for tokens in INPUTS]
    for tokens, values, by_itself in zip(INPUTS, found, alone, strict=True):
        expected = torch.nn.functional.normalize(hidden_states(model, tokens).mean(0), dim=0).numpy()
        assert float(values[0] @ expected) > least
        np.testing.assert_array_equal(values, by_itself)
