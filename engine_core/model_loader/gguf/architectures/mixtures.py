"""Mixtures of experts: ERNIE 4.5, dots.llm1, K-EXAONE, Granite, Hunyuan, MiniMax-M2, OLMoE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.model_loader.gguf.architectures.base import (
    CORRECTED,
    EXPERTS,
    SHARED_EXPERTS,
    SIGMOID,
    Architecture,
    TensorNames,
    num_layers,
    routed_experts,
    windows,
    windows_or_none,
)
from engine_core.model_loader.gguf.architectures.llama import granite, is_without_rotations, without_rotations
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.rope import require_one_base


def _ernie(metadata: Metadata) -> dict[str, Any]:
    tensors, layers = metadata.file.tensors, windows(num_layers(metadata), 1)
    sparse = [layer for layer in range(len(layers)) if f"blk.{layer}.ffn_gate_inp.weight" in tensors]
    return {
        "use_bias": "blk.0.attn_output.bias" in tensors,
        "moe_num_experts": metadata.integer("expert_count"),
        "moe_k": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": metadata.integer("expert_shared_count", 0),
        "moe_layer_interval": metadata.integer("interleave_moe_layer_step"),
        "moe_layer_start_index": metadata.integer("leading_dense_block_count", 0),
        "moe_layer_end_index": max(sparse, default=-1),
    }


def _dots1(metadata: Metadata) -> dict[str, Any]:
    metadata.require("expert_gating_func", SIGMOID)
    return routed_experts(metadata) | windows_or_none(metadata, 1)


def _exaone_moe(metadata: Metadata) -> dict[str, Any]:
    metadata.require("expert_gating_func", SIGMOID)
    require_one_base(metadata)
    experts = routed_experts(metadata)
    dense, kinds = experts.pop("first_k_dense_replace"), windows_or_none(metadata, 4)
    return (
        experts
        | kinds
        | {
            "num_experts": experts.pop("n_routed_experts"),
            "num_shared_experts": experts.pop("n_shared_experts"),
            "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(len(kinds["layer_types"]))],
        }
    )


def _granite_moe(metadata: Metadata) -> dict[str, Any]:
    return granite(metadata) | {
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "shared_intermediate_size": metadata.integer("expert_shared_feed_forward_length", 0),
    }


def _minimax_m2(metadata: Metadata) -> dict[str, Any]:
    metadata.require("expert_gating_func", SIGMOID)
    return {
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
    }


def _olmoe(metadata: Metadata) -> dict[str, Any]:
    return {
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", False),
    }


_GRANITE_NAMES = TensorNames(
    {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_shexp": "shared_mlp.output_linear"},
    joined={"shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp")},
    is_paired=True,
    experts="block_sparse_moe",
)
GRANITE_SHARED = Architecture(
    name="GraniteMoeSharedForCausalLM",
    model_type="granitemoeshared",
    models="with a shared expert",
    fields=_granite_moe,
    names=_GRANITE_NAMES,
    separates_experts=True,
)
GRANITE_HYBRID = replace(
    GRANITE_SHARED,
    name="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    models="Granite 4 without rotations and state-space layers",
    fields=lambda metadata: _granite_moe(metadata) | without_rotations(metadata),
)

ARCHITECTURES = {
    "ernie4_5-moe": Architecture(
        name="Ernie4_5_MoeForCausalLM",
        model_type="ernie4_5_moe",
        models="ERNIE 4.5 with experts",
        fields=_ernie,
        names=TensorNames(EXPERTS | SHARED_EXPERTS | {"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}),
    ),
    "dots1": Architecture(
        name="Dots1ForCausalLM",
        model_type="dots1",
        models="dots.llm1",
        fields=_dots1,
        names=TensorNames(EXPERTS | SHARED_EXPERTS | CORRECTED),
    ),
    "exaone-moe": Architecture(
        name="ExaoneMoeForCausalLM",
        model_type="exaone_moe",
        models="K-EXAONE",
        fields=_exaone_moe,
        names=TensorNames(EXPERTS | SHARED_EXPERTS | {"exp_probs_b": "mlp.e_score_correction_bias"}),
        rope_fields=frozenset({"freq_base_swa"}),
    ),
    "granitemoe": replace(
        GRANITE_SHARED,
        name="GraniteMoeForCausalLM",
        model_type="granitemoe",
        models="Granite 3 with experts",
        variants=(
            (is_without_rotations, GRANITE_HYBRID),
            (lambda metadata: metadata.integer("expert_shared_feed_forward_length", 0) > 0, GRANITE_SHARED),
        ),
    ),
    "hunyuan-moe": Architecture(
        name="HunYuanMoEV1ForCausalLM",
        model_type="hunyuan_v1_moe",
        models="Hunyuan A13B",
        fields=lambda metadata: {
            "num_experts": metadata.integer("expert_count"),
            "moe_topk": metadata.integer("expert_used_count"),
        },
        names=TensorNames(
            {"ffn_gate_inp": "mlp.gate.wg"}
            | {f"ffn_{each}_shexp": f"mlp.shared_mlp.{each}_proj" for each in ("gate", "up", "down")}
            | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
        ),
    ),
    "minimax-m2": Architecture(
        name="MiniMaxM2ForCausalLM",
        model_type="minimax_m2",
        models="MiniMax-M2",
        fields=_minimax_m2,
        names=TensorNames(
            {"ffn_gate_inp": "block_sparse_moe.gate", "exp_probs_b": "block_sparse_moe.e_score_correction_bias"},
            experts="block_sparse_moe.experts",
            projections={"gate": "w1", "up": "w3", "down": "w2"},
        ),
    ),
    "olmoe": Architecture(
        name="OlmoeForCausalLM", model_type="olmoe", models="OLMoE", fields=_olmoe, names=TensorNames(EXPERTS)
    ),
}
