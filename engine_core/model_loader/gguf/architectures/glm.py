"""GLM-4, GLM-4.5 and later, and the text of their multimodal models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.model_loader.gguf.architectures.base import (
    CORRECTED,
    EXPERTS,
    FUSED_GATE_UP,
    SHARED_EXPERTS,
    SIGMOID,
    Architecture,
    TensorNames,
    routed_experts,
)
from engine_core.model_loader.gguf.metadata import Metadata


def _glm4_moe(metadata: Metadata) -> dict[str, Any]:
    metadata.require("expert_gating_func", SIGMOID)
    return routed_experts(metadata) | {
        "num_nextn_predict_layers": metadata.integer("nextn_predict_layers", 0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.file.tensors,
    }


_SECTIONS = frozenset({"dimension_sections"})
"""As in ``qwen``."""
GLM4 = Architecture(
    name="Glm4ForCausalLM",
    model_type="glm4",
    models="GLM-4 since 0414",
    names=TensorNames(
        {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"} | FUSED_GATE_UP
    ),
    rope_fields=_SECTIONS,
    is_partial=True,
)
GLM4V = replace(GLM4, models="GLM-4.1V (its text)", names=replace(GLM4.names, is_halved=True))

ARCHITECTURES = {
    "chatglm": Architecture(
        name="GlmForCausalLM",
        model_type="glm",
        models="GLM-4 before 0414, ChatGLM 3",
        names=TensorNames(FUSED_GATE_UP),
        is_partial=True,
    ),
    "glm4": replace(GLM4, variants=((lambda metadata: metadata.has("rope.dimension_sections"), GLM4V),)),
    "glm4moe": Architecture(
        name="Glm4MoeForCausalLM",
        model_type="glm4_moe",
        models="GLM-4.5, 4.6 and 4.5V (its text), Solar Open",
        fields=_glm4_moe,
        names=TensorNames(
            EXPERTS | SHARED_EXPERTS | CORRECTED | {"post_attention_norm": "post_attention_layernorm"},
        ),
        rope_fields=_SECTIONS,
        is_partial=True,
    ),
}
