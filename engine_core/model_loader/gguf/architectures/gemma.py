"""Gemma, from the first to the fourth."""

from __future__ import annotations

from typing import Any

from engine_core.errors import UnsupportedModelError
from engine_core.model_loader.gguf.architectures.base import Architecture, TensorNames, layer_types
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.rope import factors_of_pairs, rope_parameters

_NOT_ROTATED = 1e29
_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _gemma2(metadata: Metadata) -> dict[str, Any]:
    return _windowed(metadata, of_hidden=46, every=2) | {
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping"),
    }


def _gemma3(metadata: Metadata) -> dict[str, Any]:
    return _windowed(metadata, of_hidden=62, every=6) | {
        "rope_parameters": {
            "full_attention": rope_parameters(metadata, 0),
            "sliding_attention": local_rope(metadata),
        },
        "use_bidirectional_attention": not metadata.flag("attention.causal", True),
    }


def _gemma4(metadata: Metadata) -> dict[str, Any]:
    tensors, kinds = metadata.file.tensors, layer_types(metadata, 6)
    full = next((index for index, kind in enumerate(kinds) if kind == "full_attention"), 0)
    key_heads = metadata.of_layers("attention.head_count_kv", len(kinds))
    sizes = metadata.of_layers("feed_forward_length", len(kinds))
    per_layer = tensors.get("per_layer_token_embd.weight")
    local = next((index for index, kind in enumerate(kinds) if kind == "sliding_attention"), full)
    metadata.require("rope.dimension_count_swa", metadata.integer("attention.key_length_swa"))
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": kinds,
        "sliding_window": metadata.integer("attention.sliding_window"),
        "head_dim": metadata.integer("attention.key_length_swa"),
        "global_head_dim": metadata.integer("attention.key_length"),
        "num_key_value_heads": key_heads[local] if key_heads else 0,
        "num_global_key_value_heads": key_heads[full] if key_heads else 0,
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in tensors,
        "num_kv_shared_layers": metadata.integer("attention.shared_kv_layers", 0),
        "use_double_wide_mlp": len(set(sizes)) > 1,
        "hidden_size_per_layer_input": metadata.integer("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": (per_layer or tensors["token_embd.weight"]).shape[0],
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 0.0) or None,
        "enable_moe_block": metadata.integer("expert_count", 0) > 0,
        "num_experts": metadata.integer("expert_count", 0) or None,
        "top_k_experts": metadata.integer("expert_used_count", 0) or None,
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length", 0) or None,
        "rope_parameters": {"full_attention": _proportional_rope(metadata), "sliding_attention": local_rope(metadata)},
    }


def _proportional_rope(metadata: Metadata) -> dict[str, Any]:
    """Of layers without a window: pairs that are not rotated have a factor beyond all bounds."""
    factors = factors_of_pairs(metadata.file.tensors.get("rope_freqs.weight"))
    rotated = next((index for index, each in enumerate(factors) if each != 1.0), len(factors))
    if any(each < _NOT_ROTATED for each in factors[rotated:]):
        raise UnsupportedModelError(f"{metadata.file.path}: rope_freqs.weight has other factors than 1 and 1e30")
    return {
        "rope_type": "proportional",
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": rotated / len(factors) if factors else 1.0,
    }


def local_rope(metadata: Metadata) -> dict[str, Any]:
    """Of layers with a window."""
    return {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", 10000.0)}


def _windowed(metadata: Metadata, *, of_hidden: int, every: int) -> dict[str, Any]:
    """``of_hidden``: the layer count of the model size that scales scores by hidden size / heads."""
    heads = metadata.integer("attention.head_count")
    by_hidden = metadata.integer("block_count") == of_hidden and heads > 0
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": (
            metadata.integer("embedding_length") // heads if by_hidden else metadata.integer("attention.key_length")
        ),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 0.0) or None,
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": layer_types(metadata, every),
    }


_GEMMA4_NAMES = TensorNames(
    _NORMS
    | {
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "layer_output_scale": "layer_scalar",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
    },
    {
        "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
        "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
        "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
    },
    experts="experts",
)
ARCHITECTURES = {
    "gemma": Architecture(
        name="GemmaForCausalLM",
        model_type="gemma",
        models="Gemma, CodeGemma",
        fields=lambda metadata: {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        names=TensorNames(norms_added=1.0),
    ),
    "gemma2": Architecture(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        models="Gemma 2",
        fields=_gemma2,
        names=TensorNames(_NORMS, norms_added=1.0),
    ),
    "gemma3": Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        models="Gemma 3 (its text model)",
        fields=_gemma3,
        names=TensorNames(_NORMS, norms_added=1.0),
        rope_fields=frozenset({"freq_base_swa"}),
    ),
    "gemma4": Architecture(
        name="Gemma4ForCausalLM",
        model_type="gemma4_text",
        models="Gemma 4 (its text model)",
        fields=_gemma4,
        names=_GEMMA4_NAMES,
        rope_fields=frozenset({"freq_base_swa", "dimension_count_swa"}),
        unlike_layers=frozenset({"attention.head_count_kv", "feed_forward_length"}),
        separates_experts=True,
    ),
}
