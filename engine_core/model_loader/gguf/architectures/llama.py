"""Llama and what has its layers: Mistral, Mixtral, Ministral, Granite, SmolLM3 and others."""

from __future__ import annotations

from typing import Any

from engine_core.model_loader.gguf.architectures.base import Architecture, TensorNames, num_layers, windows
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.rope import rope_parameters

_PAIRED = TensorNames(is_paired=True)


def _llama(metadata: Metadata) -> dict[str, Any]:
    return {"mlp_bias": "blk.0.ffn_gate.bias" in metadata.file.tensors}


def _mixtral(metadata: Metadata) -> dict[str, Any]:
    return {
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "sliding_window": None,
    }


def _ministral3(metadata: Metadata) -> dict[str, Any]:
    rope = rope_parameters(metadata, metadata.integer("attention.key_length", 0))
    if rope["rope_type"] == "yarn":
        weight = metadata.number("rope.scaling.yarn_log_multiplier", 0.0)  # models have an mscale of 1
        rope |= {"mscale": 1.0, "mscale_all_dim": weight} if weight else {}
    original = metadata.integer("rope.scaling.original_context_length", metadata.integer("context_length"))
    scaling = {
        "llama_4_scaling_beta": metadata.number("attention.temperature_scale"),
        "original_max_position_embeddings": metadata.integer("attention.temperature_length", original),
    }
    return {"rope_parameters": rope | scaling, "sliding_window": None}


def granite(metadata: Metadata) -> dict[str, Any]:
    """Multipliers."""
    return {
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "attention_multiplier": metadata.number("attention.scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


def is_without_rotations(metadata: Metadata) -> bool:
    """Of Granite, for which alone llama.cpp has the field mean so."""
    return not metadata.flag("rope.scaling.finetuned", True)


def without_rotations(metadata: Metadata) -> dict[str, Any]:
    """Granite 4's fields of layers that all attend; those of other layers have values that are no contradiction."""
    return {
        "position_embedding_type": "nope",
        "layer_types": ["attention"] * len(windows(num_layers(metadata), 1)),
        "mamba_n_heads": 1,
        "mamba_d_head": "auto",
    }


def _granite_hybrid(metadata: Metadata) -> dict[str, Any]:
    down = metadata.file.tensors.get("blk.0.ffn_down.weight")
    return (
        granite(metadata)
        | without_rotations(metadata)
        | {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 0 if down is None else down.shape[-1],
        }
    )


def _minicpm(metadata: Metadata) -> dict[str, Any]:
    """With the scales of llama.cpp's first files, which did not say them, where a file does not."""
    width = metadata.integer("embedding_length")
    scores = metadata.integer("attention.key_length", width // max(1, metadata.integer("attention.head_count")))
    return {
        "embedding_multiplier": metadata.number("embedding_scale", 12.0),
        "residual_multiplier": metadata.number("residual_scale", 1.4 / max(1, metadata.integer("block_count")) ** 0.5),
        "attention_multiplier": max(1, scores) ** -0.5,
        "logits_scaling": metadata.number("logit_scale", width / 256),
    }


def _seed_oss(metadata: Metadata) -> dict[str, Any]:
    tensors = metadata.file.tensors
    return {"attention_out_bias": "blk.0.attn_output.bias" in tensors, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}


def _smollm3(metadata: Metadata) -> dict[str, Any]:
    return {"no_rope_layer_interval": 4, "use_sliding_window": False}


MIXTRAL = Architecture(
    name="MixtralForCausalLM",
    model_type="mixtral",
    models="Mixtral",
    fields=_mixtral,
    names=TensorNames(
        {"ffn_gate_inp": "block_sparse_moe.gate"},
        is_paired=True,
        experts="block_sparse_moe.experts",
        projections={"gate": "w1", "up": "w3", "down": "w2"},
    ),
)
MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    models="Mistral Small 3",
    fields=lambda metadata: {"sliding_window": None},
    names=_PAIRED,
)
"""``mistral3`` without a temperature."""
GRANITE_HYBRID = Architecture(
    name="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    models="Granite 4 without rotations and state-space layers",
    fields=_granite_hybrid,
    names=TensorNames(
        {"ffn_down": "shared_mlp.output_linear"},
        joined={"shared_mlp.input_linear": ("ffn_gate", "ffn_up")},
        is_paired=True,
    ),
)

ARCHITECTURES = {
    "llama": Architecture(
        name="LlamaForCausalLM",
        model_type="llama",
        models="Llama, Mistral, SmolLM2",
        fields=_llama,
        names=_PAIRED,
        variants=((lambda metadata: metadata.integer("expert_count", 0) > 0, MIXTRAL),),
    ),
    "mistral3": Architecture(
        name="Ministral3ForCausalLM",
        model_type="ministral3",
        models="Ministral 3",
        fields=_ministral3,
        names=_PAIRED,
        rope_fields=frozenset({"scaling.yarn_log_multiplier"}),
        variants=((lambda metadata: not metadata.has("attention.temperature_scale"), MISTRAL),),
    ),
    "internlm2": Architecture(name="LlamaForCausalLM", model_type="llama", models="InternLM2", names=_PAIRED),
    "xverse": Architecture(name="LlamaForCausalLM", model_type="llama", models="XVERSE", names=_PAIRED),
    "exaone": Architecture(name="LlamaForCausalLM", model_type="llama", models="EXAONE 3"),
    "minicpm": Architecture(
        name="GraniteForCausalLM", model_type="granite", models="MiniCPM", fields=_minicpm, names=_PAIRED
    ),
    "granite": Architecture(
        name="GraniteForCausalLM",
        model_type="granite",
        models="Granite 3",
        fields=granite,
        names=_PAIRED,
        variants=((is_without_rotations, GRANITE_HYBRID),),
    ),
    "arcee": Architecture(
        name="ArceeForCausalLM",
        model_type="arcee",
        models="AFM",
        fields=lambda metadata: {"hidden_act": "relu2", "mlp_bias": "blk.0.ffn_up.bias" in metadata.file.tensors},
        names=_PAIRED,
    ),
    "seed_oss": Architecture(
        name="SeedOssForCausalLM",
        model_type="seed_oss",
        models="Seed-OSS",
        fields=_seed_oss,
        names=TensorNames({"post_attention_norm": "post_attention_layernorm"}),
    ),
    "ernie4_5": Architecture(
        name="Ernie4_5ForCausalLM",
        model_type="ernie4_5",
        models="ERNIE 4.5",
        fields=lambda metadata: {"use_bias": "blk.0.attn_output.bias" in metadata.file.tensors},
    ),
    "hunyuan-dense": Architecture(
        name="HunYuanDenseV1ForCausalLM",
        model_type="hunyuan_v1_dense",
        models="Hunyuan",
        names=TensorNames({"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}),
    ),
    "smollm3": Architecture(
        name="SmolLM3ForCausalLM", model_type="smollm3", models="SmolLM3", fields=_smollm3, names=_PAIRED
    ),
}
