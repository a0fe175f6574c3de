"""Adapters on models whose weights are quantized: what PEFT computes over the numbers that these stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config

from engine_core.llm import LoRARequest
from tests.engine_core.model_loader.gguf.written import quantized, write_gguf
from tests.engine_core.models.tiny_models import make_model, save_model
from tests.engine_core.quantization.quantizing import save_quantized
from tests.engine_core.quantization.test_stored_formats import FORMATS

from .test_parity import FAR, SCORED, adapt, difference, engine, prompt

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}
LLAMA, QWEN3 = LlamaConfig(**SIZES), Qwen3Config(**SIZES, head_dim=64)


def near(directory: Path, model: Path, expanded: Path, tolerance: float, **options: Any) -> None:
    """Rows of ``model`` with an adapter, and without, are near those of ``expanded``, the numbers it stands for."""
    base = AutoModelForCausalLM.from_pretrained(expanded, dtype=torch.float32).eval()
    adapted = adapt(base, directory / "adapter", 1)
    with engine(model, **options) as llm:
        request = LoRARequest("a", 1, adapted.path)
        plain, scored = llm.generate([prompt(20), prompt(20)], SCORED, lora_request=[None, request])
    assert difference(base, plain) < tolerance
    assert difference(adapted.model, scored) < tolerance
    assert difference(base, scored) > max(FAR, 4 * tolerance)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (LLAMA, "Q4_0"),  # llama.cpp orders the rows of its queries and keys otherwise
        pytest.param(LLAMA, "Q6_K", marks=pytest.mark.models),
        pytest.param(QWEN3, "Q4_K", marks=pytest.mark.models),
        pytest.param(QWEN3, "Q8_0", marks=pytest.mark.models),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_gguf(config: PretrainedConfig, kind: str, tmp_path: Path) -> None:
    save_model(make_model(config), tmp_path / "original")
    expanded = tmp_path / "dequantized"
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", quantized(kind), expanded)
    near(tmp_path, file, expanded, 2e-2)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "awq" else [pytest.mark.models]) for name in FORMATS]
)
def test_stored_formats(name: str, tmp_path: Path) -> None:
    path = save_quantized(QWEN3, FORMATS[name], tmp_path, torch.float32)
    near(tmp_path, path, tmp_path / "expanded", 2e-2)


@pytest.mark.parametrize(("quantization", "tolerance"), [("int8", 0.4), ("int4", 2.0)])
def test_weights_that_are_rounded_at_the_start(quantization: str, tolerance: float, tmp_path: Path) -> None:
    """The base's error is that of rounding; with an adapter it is no larger than twice that."""
    base = make_model(QWEN3, seed=3)
    save_model(base, tmp_path / "base")
    adapted = adapt(base, tmp_path / "adapter", 1)
    with engine(tmp_path / "base", quantization=quantization) as llm:
        request = LoRARequest("a", 1, adapted.path)
        plain, scored = llm.generate([prompt(20), prompt(20)], SCORED, lora_request=[None, request])
    without, with_adapter = difference(base, plain), difference(adapted.model, scored)
    assert 0 < without < tolerance
    assert with_adapter < 2 * max(without, tolerance / 2)
    assert difference(base, scored) > 2 * tolerance
