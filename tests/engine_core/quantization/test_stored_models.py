"""Formats beside kinds of models: logits, bits that depend neither on the step nor on ranks nor on the checkpoint's
types, and memory told before. Checkpoints are of another type than their models.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    GraniteMoeHybridConfig,
    LlamaConfig,
    NemotronHConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from engine_core.model_loader.digest import WeightsDigest
from engine_core.model_loader.loader import WeightsOnDisk
from tests.engine_core.distributed.matrix import Ranks, ask, differences, engine_of
from tests.engine_core.distributed.ranks import assert_bits, on_ranks
from tests.engine_core.distributed.test_tensor_parallel import run_steps
from tests.engine_core.models import test_bitwise_stability as stability
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families.latent import LATENT
from tests.engine_core.models.tiny_models import SIZES
from tests.engine_core.quantization.quantizing import save_quantized
from tests.engine_core.quantization.test_stored_formats import FORMATS

WIDE: dict[str, Any] = SIZES | {"intermediate_size": 192, "num_hidden_layers": 2, "hidden_size": 128}
OF_LATENTS: dict[str, Any] = LATENT | {
    "hidden_size": 128,
    "intermediate_size": 192,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
OF_STATES: dict[str, Any] = WIDE | {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
MODELS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**WIDE, attention_bias=True),
    "qwen3": Qwen3Config(**WIDE, head_dim=32, tie_word_embeddings=True),
    "padded-heads": Qwen3Config(**(WIDE | {"num_attention_heads": 8}), head_dim=24),
    "qwen3-moe": Qwen3MoeConfig(**WIDE, head_dim=32, moe_intermediate_size=64, num_experts=6, num_experts_per_tok=2),
    "deepseek-v2": DeepseekV2Config(**OF_LATENTS, first_k_dense_replace=1),
    "deepseek-v3": DeepseekV3Config(**OF_LATENTS, n_group=4, topk_group=2, first_k_dense_replace=1, n_shared_experts=1),
    "qwen3.5": Qwen3_5TextConfig(**OF_STATES),
    "qwen3-next": Qwen3NextConfig(
        **OF_STATES,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=6,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
    ),
    "granite4": GraniteMoeHybridConfig(
        **WIDE,
        mamba_n_heads=8,
        mamba_n_groups=2,
        mamba_d_state=32,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=192,
        layer_types=["linear_attention", "full_attention"],
    ),
    "nemotron-h": NemotronHConfig(
        **{name: value for name, value in WIDE.items() if name != "num_hidden_layers"},
        head_dim=32,
        mamba_num_heads=8,
        mamba_head_dim=32,
        n_groups=2,
        ssm_state_size=32,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=64,
        moe_latent_size=64,
        layers_block_type=["linear_attention", "moe", "full_attention"],
    ),
}
CELLS = [(model, name) for model in MODELS for name in FORMATS]


@pytest.mark.models
@pytest.mark.parametrize(("model", "name"), CELLS)
def test_every_kind_computes_with_the_weights_meant(model: str, name: str, tmp_path: Path) -> None:
    quantized = save_quantized(MODELS[model], FORMATS[name], tmp_path, torch.bfloat16)
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))
    found = logits_of(load(quantized), ids, chunks=[33, 1, 6])
    torch.testing.assert_close(found, logits_of(load(tmp_path / "expanded"), ids), atol=5e-4, rtol=5e-4)


@pytest.mark.models
@pytest.mark.parametrize(("stored", "dtype"), [(torch.float16, "bfloat16"), (torch.bfloat16, "float16")])
@pytest.mark.parametrize(("model", "name"), CELLS)
def test_logits_do_not_depend_on_the_step(
    model: str, name: str, stored: torch.dtype, dtype: str, tmp_path: Path
) -> None:
    quantized = save_quantized(MODELS[model], FORMATS[name], tmp_path, stored)
    before = torch.get_num_threads()
    try:
        stability.check(load(quantized, dtype))
    finally:
        torch.set_num_threads(before)


_NARROW = (torch.float16, torch.bfloat16)
RANKS_IN_EVERY_RUN = {("padded-heads", "gptq-rules")}


@pytest.mark.parametrize(
    ("model", "name"),
    [pytest.param(*cell, marks=[] if cell in RANKS_IN_EVERY_RUN else pytest.mark.models) for cell in CELLS],
)
def test_ranks_compute_the_bits_of_one_process(model: str, name: str, tmp_path: Path) -> None:
    """Also where their checkpoint has the same numbers in float32."""
    quantized = save_quantized(MODELS[model], FORMATS[name], tmp_path, torch.bfloat16)
    expected = run_steps(build_model(open_at(quantized, dtype="bfloat16")))
    tensors = load_file(quantized / "model.safetensors")
    wider = {name: tensor.float() if tensor.dtype in _NARROW else tensor for name, tensor in tensors.items()}
    save_file(wider, quantized / "model.safetensors")
    assert_bits(on_ranks(open_at(quantized, dtype="bfloat16"), 2, run_steps)[0], expected)


@pytest.mark.models
@pytest.mark.parametrize(("model", "name"), [cell for cell in CELLS if cell[0] != "padded-heads"])
def test_memory_is_told_before_loading(model: str, name: str, tmp_path: Path) -> None:
    """But for padding, which is a lot of so small a model, and what is expanded, such as latents."""
    quantized = save_quantized(MODELS[model], FORMATS[name], tmp_path, torch.bfloat16)
    built = build_model(open_at(quantized, dtype="bfloat16"))
    assert built.expected_weight_bytes == pytest.approx(built.weight_bytes, rel=0.3)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "gptq-ordered" else pytest.mark.models) for name in FORMATS]
)
def test_the_digest_is_of_every_byte_and_once(name: str, tmp_path: Path) -> None:
    """Whether a process loads all tensors, a few rows at a time, or reads them for their digest alone."""
    checkpoint = open_at(save_quantized(MODELS["llama"], FORMATS[name], tmp_path, torch.bfloat16))
    digest = WeightsDigest()
    build_model(checkpoint, digest=digest)
    assert checkpoint.digest(digest) == WeightsOnDisk(checkpoint).digest(threading.Event())


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("model", "name"),
    [("qwen3", "awq"), ("qwen3-moe", "gptq-ordered"), ("deepseek-v3", "deepseek-fp8"), ("llama", "nf4")],
)
def test_engines_of_two_ranks_answer_as_one_process(model: str, name: str, tmp_path: Path) -> None:
    quantized = save_quantized(MODELS[model], FORMATS[name], tmp_path, torch.bfloat16)
    with engine_of(quantized, "bfloat16", None) as engine:
        known = ask(engine)
    with engine_of(quantized, "bfloat16", Ranks(2, 1)) as engine:
        assert differences(known, ask(engine, known)) == []


@pytest.mark.models
@pytest.mark.parametrize("name", FORMATS)
def test_weights_may_be_made_up(name: str, tmp_path: Path) -> None:
    quantized = save_quantized(MODELS["qwen3-moe"], FORMATS[name], tmp_path, torch.bfloat16)
    (quantized / "model.safetensors").unlink()
    logits = logits_of(build_model(open_at(quantized, "dummy", dtype="bfloat16")), torch.arange(20))
    assert logits.isfinite().all()
