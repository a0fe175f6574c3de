"""Architectures that share little with others: OLMo 2 and 3, EXAONE 4, Phi-3, gpt-oss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.model_loader.gguf.architectures.base import (
    FUSED_GATE_UP,
    Architecture,
    TensorNames,
    layer_types,
    windows,
    windows_or_none,
)
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.rope import require_one_base, rope_parameters


def _exaone4(metadata: Metadata) -> dict[str, Any]:
    require_one_base(metadata)
    return windows_or_none(metadata, 4)


def _phi3(metadata: Metadata) -> dict[str, Any]:
    return {
        "sliding_window": metadata.integer("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": metadata.integer(
            "rope.scaling.original_context_length", metadata.integer("context_length")
        ),
        "pad_token_id": None,
    }


def _olmo3(metadata: Metadata) -> dict[str, Any]:
    full = rope_parameters(metadata, metadata.integer("attention.key_length", 0))
    local = metadata.number("rope.freq_base_swa", full["rope_theta"])
    return {
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": layer_types(metadata, 4),
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _gpt_oss(metadata: Metadata) -> dict[str, Any]:
    return {
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": windows(metadata.integer("block_count"), 2),
        "rope_parameters": rope_parameters(metadata, 0) | {"truncate": False},
    }


OLMO3 = Architecture(
    name="Olmo3ForCausalLM",
    model_type="olmo3",
    models="OLMo 3",
    fields=_olmo3,
    names=TensorNames(
        {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    ),
    rope_fields=frozenset({"freq_base_swa"}),
)

ARCHITECTURES = {
    "exaone4": Architecture(
        name="Exaone4ForCausalLM",
        model_type="exaone4",
        models="EXAONE 4",
        fields=_exaone4,
        names=OLMO3.names,
        rope_fields=frozenset({"freq_base_swa"}),
    ),
    "phi3": Architecture(
        name="Phi3ForCausalLM",
        model_type="phi3",
        models="Phi-3, Phi-3.5, Phi-4",
        fields=_phi3,
        names=TensorNames({"attn_qkv": "self_attn.qkv_proj"} | FUSED_GATE_UP),
    ),
    "olmo2": replace(
        OLMO3,
        name="Olmo2ForCausalLM",
        model_type="olmo2",
        models="OLMo 2",
        fields=lambda metadata: {},
        variants=((lambda metadata: metadata.integer("attention.sliding_window", 0) > 0, OLMO3),),
    ),
    "gpt-oss": Architecture(
        name="GptOssForCausalLM",
        model_type="gpt_oss",
        models="gpt-oss",
        fields=_gpt_oss,
        names=TensorNames(
            {
                "ffn_gate_inp": "mlp.router",
                "post_attention_norm": "post_attention_layernorm",
                "attn_sinks": "self_attn.sinks",
            }
        ),
        separates_experts=True,
    ),
}
