"""What a GGUF file says of a model, as convert_hf_to_gguf.py (llama.cpp) writes it."""

from __future__ import annotations

import math
from typing import Any

from transformers import PretrainedConfig

from tests.engine_core.model_loader.gguf import written_states

_LAYER_NORMS = {
    "cohere": "layer_norm_eps",
    "cohere2": "layer_norm_eps",
    "nemotron": "norm_eps",
    "olmo": "",
    "phi": "layer_norm_eps",
    "stablelm": "layer_norm_eps",
    "starcoder2": "norm_epsilon",
}
"""Families without RMS norms, and what they call the epsilon."""


def metadata(config: PretrainedConfig) -> dict[str, Any]:
    """What the file says of the model, without the architecture's name."""
    if config.model_type == "mamba2":
        return written_states.fields(config)
    heads, kind = config.num_attention_heads, config.model_type
    first = config.per_layer_config[0] if kind == "gemma4_text" else config
    head_dim = getattr(first, "head_dim", None) or config.hidden_size // heads
    rope = dict(getattr(config, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0})
    if "full_attention" in rope:
        rope, local = rope["full_attention"], rope["sliding_attention"]["rope_theta"]
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "no_vocab",
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", config.hidden_size),
        "block_count": config.num_hidden_layers,
        "attention.head_count": heads,
        "attention.head_count_kv": first.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(rope["rope_theta"]),
        "tokenizer.ggml.eos_token_id": 2,
    }
    if kind in _LAYER_NORMS:
        fields["attention.layer_norm_epsilon"] = getattr(config, _LAYER_NORMS[kind], 1e-5)
    else:
        fields["attention.layer_norm_rms_epsilon"] = getattr(config, "rms_norm_eps", 1e-5)
    if "alpha" in rope:  # for which the period is stretched
        fields["rope.freq_base"] *= rope["alpha"] ** (head_dim / (head_dim - 2))
        fields |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    if rope["rope_type"] in ("linear", "yarn"):
        fields |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if (original := rope.get("original_max_position_embeddings")) is not None:
        fields["rope.scaling.original_context_length"] = original
    if rope["rope_type"] == "longrope":
        factor = rope.get("factor") or config.max_position_embeddings / original
        implied = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
        fields["rope.scaling.attn_factor"] = float(rope.get("attention_factor") or implied)
    if kind in ("mixtral", "gpt_oss", "qwen2_moe", "qwen3_moe"):
        count = config.num_experts if kind.startswith("qwen") else config.num_local_experts
        fields |= {"expert_count": count, "expert_used_count": config.num_experts_per_tok}
        fields["expert_feed_forward_length"] = getattr(config, "moe_intermediate_size", config.intermediate_size)
    match kind:
        case "qwen2_moe":
            fields["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
        case "gemma2":
            fields["attention.sliding_window"] = config.sliding_window
            fields["attn_logit_softcapping"] = config.attn_logit_softcapping
            fields["final_logit_softcapping"] = config.final_logit_softcapping
        case (
            "hunyuan_v1_moe"
            | "ernie4_5_moe"
            | "granitemoe"
            | "granitemoeshared"
            | "granitemoehybrid"
            | "minimax_m2"
            | "olmoe"
        ):
            fields |= _mixture(config)
        case "llama4_text":
            fields |= _mixture(config) | {"feed_forward_length": config.intermediate_size_mlp}
        case "exaone_moe":
            fields |= _windows(config) | _mixture(config)
        case "cohere":
            fields["logit_scale"] = config.logit_scale
        case "cohere2":
            fields |= {"attention.sliding_window": config.sliding_window, "logit_scale": config.logit_scale}
        case "exaone4" if config.sliding_window is not None:
            fields |= _windows(config)
        case "olmo3":
            fields |= _windows(config) | {"rope.freq_base_swa": float(local)}
        case "gemma4_text":
            fields |= _windows(config) | _gemma4(config) | {"rope.freq_base_swa": float(local)}
        case "ministral3":
            fields["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
            fields["rope.scaling.yarn_log_multiplier"] = float(rope.get("mscale_all_dim", 0.0))
        case "gemma3_text":
            fields |= {"attention.sliding_window": config.sliding_window, "rope.freq_base_swa": float(local)}
        case "gpt_oss":
            fields["attention.sliding_window"] = config.sliding_window
        case "phi3":
            fields["attention.sliding_window"] = config.sliding_window or 0
        case "granite":
            fields |= _multipliers(config)
        case "dots1" | "solar_open" | "glm4_moe" | "deepseek_v2" | "deepseek_v3":
            fields |= _routed(config)
    if written_states.architecture_of(config) is not None:
        return fields | written_states.fields(config)
    if kind.startswith("deepseek"):
        rank, rotated, keys = config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim
        fields |= {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": keys + rotated,
            "attention.value_length_mla": config.v_head_dim,
            "rope.dimension_count": rotated,
        }
        if config.q_lora_rank is not None:
            fields["attention.q_lora_rank"] = config.q_lora_rank
        if (weight := rope.get("mscale_all_dim")) is not None:
            fields["rope.scaling.yarn_log_multiplier"] = 0.1 * weight
    return fields


def _routed(config: PretrainedConfig) -> dict[str, Any]:
    is_v2 = config.model_type == "deepseek_v2"
    return {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": getattr(config, "first_k_dense_replace", 0),
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": bool(config.norm_topk_prob),
        "expert_gating_func": 1 if is_v2 else 2,
        "expert_group_count": getattr(config, "n_group", None) or 1,
        "expert_group_used_count": getattr(config, "topk_group", None) or 1,
    }


def _multipliers(config: PretrainedConfig) -> dict[str, Any]:
    return {
        "embedding_scale": config.embedding_multiplier,
        "logit_scale": config.logits_scaling,
        "residual_scale": config.residual_multiplier,
        "attention.scale": config.attention_multiplier,
    }


def _mixture(config: PretrainedConfig) -> dict[str, Any]:
    """Of the mixtures that say it each in their own way."""
    fields: dict[str, Any] = {
        "expert_count": getattr(config, "num_experts", None) or config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
    }
    match config.model_type:
        case "ernie4_5_moe":
            fields |= {
                "interleave_moe_layer_step": config.moe_layer_interval,
                "leading_dense_block_count": config.moe_layer_start_index,
                "expert_feed_forward_length": config.moe_intermediate_size,
                "expert_shared_count": config.moe_num_shared_experts,
            }
        case "exaone_moe":
            fields |= {
                "expert_feed_forward_length": config.moe_intermediate_size,
                "expert_shared_count": config.num_shared_experts,
                "leading_dense_block_count": config.mlp_layer_types.count("dense"),
                "expert_weights_scale": float(config.routed_scaling_factor),
                "expert_weights_norm": config.norm_topk_prob,
                "expert_group_count": config.n_group,
                "expert_group_used_count": config.topk_group,
            }
        case "llama4_text":
            fields["expert_feed_forward_length"] = config.intermediate_size
            fields["interleave_moe_layer_step"] = config.interleave_moe_layer_step
            fields["attention.chunk_size"] = config.attention_chunk_size
        case "olmoe":
            fields["expert_weights_norm"] = config.norm_topk_prob
        case "minimax_m2":
            fields["expert_feed_forward_length"] = config.intermediate_size
        case "granitemoe" | "granitemoeshared" | "granitemoehybrid":
            fields |= _multipliers(config)
            fields["expert_shared_feed_forward_length"] = getattr(config, "shared_intermediate_size", 0)
    return fields


def _windows(config: PretrainedConfig) -> dict[str, Any]:
    """Which layers have a window, and its size."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    return {"attention.sliding_window": config.sliding_window, "attention.sliding_window_pattern": slides}


def of_kinds(config: PretrainedConfig, name: str) -> dict[str, int]:
    """A field of Gemma 4's layers with and without a window."""
    return {kind: getattr(layer, name) for kind, layer in zip(config.layer_types, config.per_layer_config, strict=True)}


def _gemma4(config: PretrainedConfig) -> dict[str, Any]:
    """Of layers that differ, and of what some sizes of the model lack."""
    layers, shared = config.num_hidden_layers, config.num_kv_shared_layers
    sizes, key_heads = of_kinds(config, "head_dim"), of_kinds(config, "num_key_value_heads")
    full, local = sizes["full_attention"], sizes.get("sliding_attention", sizes["full_attention"])
    fields: dict[str, Any] = {
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input or 0,
        "rope.dimension_count": full,
        "rope.dimension_count_swa": local,
        "final_logit_softcapping": config.final_logit_softcapping or 0.0,
    }
    if config.use_double_wide_mlp:
        size = config.intermediate_size
        fields["feed_forward_length"] = [size * (1 + (layer >= layers - shared)) for layer in range(layers)]
    if len(set(key_heads.values())) > 1:
        fields["attention.head_count_kv"] = [key_heads[kind] for kind in config.layer_types]
    if config.enable_moe_block:
        fields |= {"expert_count": config.num_experts, "expert_used_count": config.top_k_experts}
        fields["expert_feed_forward_length"] = config.moe_intermediate_size
    return fields
