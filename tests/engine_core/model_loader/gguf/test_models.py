"""A model from a GGUF file computes what the same weights compute from safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from tests.engine_core.model_loader.gguf.written import quantized, write_gguf
from tests.engine_core.models.driver import load, logits_of
from tests.engine_core.models.families import dense, experts, latent, scaled
from tests.engine_core.models.tiny_models import CASES, SIZES, YARN, make_model, save_model

WIDE = SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
IDS = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))

FLOATS: dict[str, PretrainedConfig] = {
    name: CASES[name]
    for name in ("llama-gqa", "llama-mha-tied-biases", "llama3-rope", "llama-linear-rope-head-dim", "olmo2")
}
FLOATS |= {name: CASES[name] for name in ("mistral-wide-window", "qwen2-tied", "qwen2-yarn", "qwen3-tied-head-dim")}
FLOATS |= {name: dense.SHAPES[name] for name in ("phi3-short-factors-mqa-tied-padded", "phi3-window", "glm4")}
FLOATS |= {name: experts.SHAPES[name] for name in ("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss")}
FLOATS |= {name: latent.SHAPES[name] for name in ("deepseek_v2-no-query-latent", "deepseek_v3")}
FLOATS |= {name: scaled.SHAPES[name] for name in ("gemma2", "granite")}


@pytest.mark.parametrize("case", FLOATS)
def test_every_architecture(case: str, tmp_path: Path) -> None:
    """Without rounding: names, order of rows and configuration show."""
    config = FLOATS[case]
    save_model(make_model(config), tmp_path / "original")
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf")
    assert torch.equal(logits_of(load(file), IDS), logits_of(load(tmp_path / "original"), IDS))
