"""Qwen 2 and 3, with and without experts, and the text of their multimodal models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.model_loader.gguf.architectures.base import EXPERTS, Architecture, TensorNames
from engine_core.model_loader.gguf.metadata import Metadata


def _dense(metadata: Metadata) -> dict[str, Any]:
    return {"use_sliding_window": False}


def _qwen2_moe(metadata: Metadata) -> dict[str, Any]:
    return _experts(metadata, renormalized=False) | {
        "qkv_bias": "blk.0.attn_q.bias" in metadata.file.tensors,
        "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
    }


def _qwen3_moe(metadata: Metadata) -> dict[str, Any]:
    return _experts(metadata, renormalized=True)


def _experts(metadata: Metadata, *, renormalized: bool) -> dict[str, Any]:
    return {
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", renormalized),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


_SECTIONS = frozenset({"dimension_sections"})
"""Which numbers of a head are rotated by time, height and width: of text, all three are the token's position."""
_QWEN2 = Architecture(name="Qwen2ForCausalLM", model_type="qwen2", models="Qwen2, Qwen2.5", fields=_dense)
_QWEN3 = Architecture(name="Qwen3ForCausalLM", model_type="qwen3", models="Qwen3", fields=_dense)
_QWEN3_MOE = Architecture(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    models="Qwen3-MoE",
    fields=_qwen3_moe,
    names=TensorNames(EXPERTS),
)

ARCHITECTURES = {
    "qwen2": _QWEN2,
    "qwen2vl": replace(_QWEN2, models="Qwen2-VL, Qwen2.5-VL, Qwen2.5-Omni (their text)", rope_fields=_SECTIONS),
    "qwen2moe": Architecture(
        name="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        models="Qwen1.5-MoE, Qwen2-MoE",
        fields=_qwen2_moe,
        names=TensorNames(
            EXPERTS
            | {f"ffn_{each}_shexp": f"mlp.shared_expert.{each}_proj" for each in ("gate", "up", "down")}
            | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
        ),
    ),
    "qwen3": _QWEN3,
    "qwen3vl": replace(_QWEN3, models="Qwen3-VL (its text)", rope_fields=_SECTIONS),
    "qwen3moe": _QWEN3_MOE,
    "qwen3vlmoe": replace(_QWEN3_MOE, models="Qwen3-VL with experts, Qwen3-Omni (their text)", rope_fields=_SECTIONS),
}
