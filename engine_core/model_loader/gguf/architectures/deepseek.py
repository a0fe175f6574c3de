"""DeepSeek V2 and V3: attention over latents, and many experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.errors import UnsupportedModelError
from engine_core.model_loader.gguf.architectures.base import (
    CORRECTED,
    EXPERTS,
    SHARED_EXPERTS,
    SIGMOID,
    Architecture,
    TensorNames,
    routed_experts,
)
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.rope import rope_parameters

_LATENTS = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}


def _is_v3(metadata: Metadata) -> bool:
    return metadata.integer("expert_gating_func", 1) == SIGMOID


def _v3(metadata: Metadata) -> dict[str, Any]:
    return _common(metadata) | {"rope_interleave": True}


def _v2(metadata: Metadata) -> dict[str, Any]:
    common = _common(metadata)
    return common | {"topk_method": "greedy" if common["n_group"] == 1 else "group_limited_greedy"}


def _common(metadata: Metadata) -> dict[str, Any]:
    if metadata.number("attention.temperature_scale", 0.0) != 0.0:
        raise UnsupportedModelError(
            f"{metadata.file.path}: {metadata.key('attention.temperature_scale')} is not supported, as Mistral Large 3 "
            "has it"
        )
    rotated, rank = metadata.integer("rope.dimension_count"), metadata.integer("attention.kv_lora_rank")
    split = metadata.has("attention.key_length_mla")
    keys = metadata.integer("attention.key_length_mla" if split else "attention.key_length")
    values = metadata.integer("attention.value_length_mla" if split else "attention.value_length")
    rope = {key: value for key, value in rope_parameters(metadata, rotated).items() if key != "partial_rotary_factor"}
    if rope["rope_type"] == "yarn":
        # The converter writes 0.1 × mscale_all_dim; models have mscale equal to it.
        weight = float(f"{10 * metadata.number('rope.scaling.yarn_log_multiplier', 0.0):.7g}")
        rope |= {"mscale": weight, "mscale_all_dim": weight} if weight else {}
    return routed_experts(metadata) | {
        "num_key_value_heads": metadata.integer("attention.head_count"),
        "q_lora_rank": metadata.integer("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": values,
        "head_dim": rotated,
        "rope_parameters": rope,
        "attention_bias": "blk.0.attn_kv_a_mqa.bias" in metadata.file.tensors,
    }


V3 = Architecture(
    name="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    models="DeepSeek V3 and R1, and what has their architecture",
    fields=_v3,
    names=TensorNames(EXPERTS | SHARED_EXPERTS | CORRECTED | _LATENTS),
    rope_fields=frozenset({"scaling.yarn_log_multiplier"}),
)

ARCHITECTURES = {
    "deepseek2": replace(
        V3,
        name="DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        models="DeepSeek V2",
        fields=_v2,
        variants=((_is_v3, V3),),
    ),
}
