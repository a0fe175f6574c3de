"""Quantized checkpoints compute what the weights that they stand for compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig

from tests.engine_core.models.driver import load, logits_of
from tests.engine_core.models.tiny_models import SIZES
from tests.engine_core.quantization.quantizing import Quantizer, awq, save_quantized

LLAMA = LlamaConfig(**(SIZES | {"intermediate_size": 128, "num_hidden_layers": 1}))
FORMATS: dict[str, Quantizer] = {
    "awq": awq(),
    "awq-exceptions": awq(exceptions=("k_proj", "mlp.up_proj")),
}


def check(config: PretrainedConfig, quantizer: Quantizer, directory: Path) -> None:
    """In float32, where kernels for quantized weights round nothing that others do not."""
    quantized = save_quantized(config, quantizer, directory, torch.float32)
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))
    found = logits_of(load(quantized), ids, chunks=[33, 1, 6])
    expected = logits_of(load(directory / "expanded"), ids)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_weights_meant(name: str, tmp_path: Path) -> None:
    check(LLAMA, FORMATS[name], tmp_path)
