"""What a step must read and compute, against arithmetic by hand: experts, latents, windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import DeepseekV3Config, PretrainedConfig, Qwen3MoeConfig

from engine_core.config import LoadConfig, ModelConfig
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.model_loader.loader import model_outline
from engine_core.models.roofline import StepCost

SIZES = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 128}
NORMS = 2 * 64
"""Weights of a layer's norms over hidden states."""


def cost_of(config: PretrainedConfig, path: Path, quantization: str | None = None) -> StepCost:
    config.save_pretrained(path)
    options = ModelConfig(model=str(path), dtype="bfloat16", quantization=quantization)
    return StepCost.of_model(model_outline(open_checkpoint(options, LoadConfig(load_format="dummy"))))


def experts() -> Qwen3MoeConfig:
    """Two layers have 8 experts, of which a row has 2; the one between them has a dense feed-forward block."""
    return Qwen3MoeConfig(
        **SIZES,
        architectures=["Qwen3MoeForCausalLM"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=160,
        moe_intermediate_size=48,
        num_experts=8,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
    )


def test_rows_read_the_experts_that_they_are_routed_to(tmp_path: Path) -> None:
    cost = cost_of(experts(), tmp_path)
    attention = 64 * (4 + 2 + 2) * 32 + 4 * 32 * 64 + 2 * 32 + NORMS  # projections, norms of heads
    fixed, routed, head = 3 * attention + 3 * 64 * 160 + 2 * 8 * 64, 2 * 8 * 3 * 64 * 48, 200 * 64
    assert (cost.body, cost.head) == (fixed + routed, head)
    assert cost.active == fixed + routed / 4 + head
    for rows in (1, 3, 50):
        step = cost.step(rows, 0, 0, 0)
        assert step.operations == pytest.approx(2 * rows * (fixed + routed / 4))
        assert step.read == pytest.approx(2 * (fixed + routed * (1 - 0.75**rows)))  # expected distinct experts of 8
    assert cost.step(1, 1, 0, 0).read - cost.step(1, 0, 0, 0).read == pytest.approx(2 * head)


def test_experts_take_half_the_bytes_in_8_bits(tmp_path: Path) -> None:
    whole, rounded = (cost_of(experts(), tmp_path / str(kind), kind) for kind in (None, "int8"))
    assert (whole.body, whole.active) == (rounded.body, rounded.active)
    ((_, routed), (_, kept)) = whole.layers, rounded.layers
    outputs = 2 * 8 * (2 * 48 + 64)
    assert kept == replace(routed, nbytes=routed.nbytes / 2 + 8 * outputs)  # each has a scale and a sum
    assert rounded.step(1, 1, 0, 0).read < 0.6 * whole.step(1, 1, 0, 0).read


def test_latents_are_read_once_for_all_heads(tmp_path: Path) -> None:
    config = DeepseekV3Config(
        **SIZES,
        architectures=["DeepseekV3ForCausalLM"],
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=48,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=24,
        intermediate_size=160,
        moe_intermediate_size=48,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=2,
    )
    cost = cost_of(config, tmp_path)
    latents = 64 * 48 + 48 * 4 * (16 + 8) + 64 * (32 + 8) + 48 + 32  # of queries; of keys and values; their norms
    attention = latents + 32 * 4 * (16 + 24) + 4 * 24 * 64 + NORMS
    fixed = 3 * attention + 2 * 3 * 64 * 160 + (8 * 64 + 8) + 3 * 64 * 48  # the router corrects its choice
    assert cost.body == fixed + 8 * 3 * 64 * 48
    assert cost.active == fixed + 2 * 3 * 64 * 48 + 200 * 64
    assert cost.kv_bytes == 2 * 3 * (32 + 8)
    assert cost.attention == 3 * 2 * 4 * (32 + 8 + 32)  # scores of the latent and its rotated part, and values
