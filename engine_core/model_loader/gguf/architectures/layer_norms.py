"""Families with layer norms: Command R, Nemotron, OLMo, Phi-2, StableLM, StarCoder2."""

from __future__ import annotations

from typing import Any

from engine_core.model_loader.gguf.architectures.base import Architecture, TensorNames, layer_types
from engine_core.model_loader.gguf.metadata import Metadata


def _command_r(metadata: Metadata) -> dict[str, Any]:
    return {
        "logit_scale": metadata.number("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.file.tensors,
    }


def _cohere2(metadata: Metadata) -> dict[str, Any]:
    return {
        "logit_scale": metadata.number("logit_scale"),
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": layer_types(metadata, 4),
    }


def _nemotron(metadata: Metadata) -> dict[str, Any]:
    return {"hidden_act": "relu2", "mlp_bias": "blk.0.ffn_up.bias" in metadata.file.tensors}


def _olmo(metadata: Metadata) -> dict[str, Any]:
    return {"clip_qkv": metadata.number("attention.clamp_kqv", 0.0) or None}


def _phi2(metadata: Metadata) -> dict[str, Any]:
    return {"hidden_act": "gelu_new", "qk_layernorm": False}


def _stablelm(metadata: Metadata) -> dict[str, Any]:
    tensors = metadata.file.tensors
    return {
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
    }


def _starcoder2(metadata: Metadata) -> dict[str, Any]:
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": "blk.0.attn_q.bias" in metadata.file.tensors,
        "sliding_window": None,
    }


ARCHITECTURES = {
    "command-r": Architecture(
        name="CohereForCausalLM",
        model_type="cohere",
        models="Command R, Aya 23",
        fields=_command_r,
        layer_norm="layer_norm_eps",
    ),
    "cohere2": Architecture(
        name="Cohere2ForCausalLM",
        model_type="cohere2",
        models="Command R7B, Command A",
        fields=_cohere2,
        layer_norm="layer_norm_eps",
    ),
    "nemotron": Architecture(
        name="NemotronForCausalLM",
        model_type="nemotron",
        models="Nemotron-4, Minitron",
        fields=_nemotron,
        names=TensorNames(norms_added=1.0),
        layer_norm="norm_eps",
        is_partial=True,
    ),
    "olmo": Architecture(
        name="OlmoForCausalLM",
        model_type="olmo",
        models="OLMo",
        fields=_olmo,
        names=TensorNames(is_paired=True),
        layer_norm="layer_norm_eps",
    ),
    "phi2": Architecture(
        name="PhiForCausalLM",
        model_type="phi",
        models="Phi-1, Phi-1.5, Phi-2",
        fields=_phi2,
        names=TensorNames(
            {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
            {
                "output_norm.weight": "model.final_layernorm.weight",
                "output_norm.bias": "model.final_layernorm.bias",
                "output.bias": "lm_head.bias",
            },
        ),
        layer_norm="layer_norm_eps",
        is_partial=True,
    ),
    "stablelm": Architecture(
        name="StableLmForCausalLM",
        model_type="stablelm",
        models="StableLM",
        fields=_stablelm,
        names=TensorNames(
            rows={"attn_q_norm": "self_attn.q_layernorm.norms", "attn_k_norm": "self_attn.k_layernorm.norms"}
        ),
        layer_norm="layer_norm_eps",
        is_partial=True,
    ),
    "starcoder2": Architecture(
        name="Starcoder2ForCausalLM",
        model_type="starcoder2",
        models="StarCoder2",
        fields=_starcoder2,
        names=TensorNames({"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
        layer_norm="norm_epsilon",
    ),
}
