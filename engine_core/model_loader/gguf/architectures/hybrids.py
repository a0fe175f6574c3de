"""Models whose layers keep states: LFM2, Qwen3.5 and Qwen3-Next, Granite 4 with Mamba-2, Nemotron-H, Mamba-2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf.architectures.base import (
    EXPERTS,
    SIGMOID,
    Architecture,
    RecurrentOrder,
    TensorNames,
    num_layers,
    routed_experts,
)
from engine_core.model_loader.gguf.architectures.llama import granite
from engine_core.model_loader.gguf.metadata import MOST_LAYERS, Metadata
from engine_core.model_loader.gguf.rope import rope_parameters
from engine_core.models.qwen3_next import SEPARATE_GATES

_FULL, _LINEAR, _CONV = "full_attention", "linear_attention", "conv"
_MOST_HEADS = 2**10
"""Each becomes rows by themselves."""


def _has(metadata: Metadata, end: str) -> bool:
    """Whether a layer has the tensor ``end``."""
    return any(name.endswith(f".{end}") for name in metadata.file.tensors)


def _key_heads(metadata: Metadata) -> list[int]:
    """Those of each layer; 0: it does not attend."""
    return metadata.of_layers("attention.head_count_kv", num_layers(metadata))


def _attention(metadata: Metadata, other: str) -> dict[str, Any]:
    """``layer_types`` of a model whose layers are of type ``other`` if they do not attend. Raises ``CheckpointError``
    for layers that attend with different numbers of heads.
    """
    heads = _key_heads(metadata)
    if len(counts := sorted(set(heads) - {0})) > 1:
        raise CheckpointError(
            f"{metadata.file.path}: {metadata.key('attention.head_count_kv')} has {' and '.join(map(str, counts))}: "
            "expected one number for all layers that attend, and 0 for the others"
        )
    return {
        "num_key_value_heads": max(heads, default=0),
        "layer_types": [_FULL if each else other for each in heads],
    }


def _lfm2(metadata: Metadata) -> dict[str, Any]:
    metadata.require("attention.sliding_window", 0)
    return _attention(metadata, _CONV) | {
        "norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": metadata.integer("shortconv.l_cache"),
        "conv_bias": _has(metadata, "shortconv.in_proj.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(metadata: Metadata) -> dict[str, Any]:
    metadata.require("expert_gating_func", SIGMOID)
    return _lfm2(metadata) | {
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "num_dense_layers": metadata.integer("leading_dense_block_count", 0),
        "norm_topk_prob": metadata.flag("expert_weights_norm", True),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 0.0) or 1.0,
        "use_expert_bias": _has(metadata, "exp_probs_b.bias"),
    }


def _recurrent_heads(metadata: Metadata) -> tuple[int, int]:
    """The number of value heads, and their width. Raises ``CheckpointError``."""
    heads, inner = metadata.integer("ssm.time_step_rank"), metadata.integer("ssm.inner_size")
    if heads < 1 or inner < 1 or inner % heads:
        raise CheckpointError(
            f"{metadata.file.path}: {metadata.key('ssm.inner_size')}={inner} is not usable: expected a multiple of "
            f"ssm.time_step_rank={heads}"
        )
    return heads, inner // heads


def _delta_net(metadata: Metadata) -> dict[str, Any]:
    heads, width = _recurrent_heads(metadata)
    rope = rope_parameters(metadata, metadata.integer("attention.key_length"))
    return {
        "linear_conv_kernel_dim": metadata.integer("ssm.conv_kernel"),
        "linear_key_head_dim": metadata.integer("ssm.state_size"),
        "linear_num_key_heads": metadata.integer("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": width,
        "layer_types": _recurrent_or_full(metadata),
        "attention_bias": _has(metadata, "attn_output.bias"),
        "rope_parameters": {"partial_rotary_factor": 1.0} | rope,
    }


def _recurrent_or_full(metadata: Metadata) -> list[str]:
    """As the file lists them, or with every so many-th layer attending."""
    layers = num_layers(metadata)
    if metadata.is_list("attention.recurrent_layers"):
        recurrent = metadata.of_layers("attention.recurrent_layers", layers)
        return [_LINEAR if each else _FULL for each in recurrent]
    every = metadata.integer("full_attention_interval", 4)
    if every < 1 or not 0 <= layers < MOST_LAYERS:
        raise CheckpointError(
            f"{metadata.file.path}: {metadata.key('full_attention_interval')}={every}: expected a positive number"
        )
    return [_LINEAR if layer % every else _FULL for layer in range(1, layers + 1)]


def _delta_net_moe(metadata: Metadata) -> dict[str, Any]:
    return _delta_net(metadata) | {
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _order(metadata: Metadata) -> RecurrentOrder:
    heads, width = _recurrent_heads(metadata)
    keys, key_dim = metadata.integer("ssm.group_count"), metadata.integer("ssm.state_size")
    if min(keys, key_dim) < 1 or heads % keys or heads > _MOST_HEADS:
        raise CheckpointError(
            f"{metadata.file.path}: {metadata.key('ssm.time_step_rank')}={heads} is not usable: expected a multiple of "
            f"ssm.group_count={keys}, and at most {_MOST_HEADS}"
        )
    return RecurrentOrder(keys, heads // keys, key_dim, width)


def _granite_hybrid(metadata: Metadata) -> dict[str, Any]:
    heads, width = _recurrent_heads(metadata)
    hidden, experts = metadata.integer("embedding_length"), metadata.integer("expert_count", 0)
    rotates = metadata.flag("rope.scaling.finetuned", False)
    down = metadata.file.tensors.get("blk.0.ffn_down.weight")
    shared = metadata.integer("expert_shared_feed_forward_length", 0)
    return (
        granite(metadata)
        | _attention(metadata, _LINEAR)
        | {
            "mamba_n_heads": heads,
            "mamba_d_head": width,
            "mamba_n_groups": metadata.integer("ssm.group_count"),
            "mamba_d_state": metadata.integer("ssm.state_size"),
            "mamba_d_conv": metadata.integer("ssm.conv_kernel"),
            "mamba_expand": heads * width // hidden if hidden > 0 else 0,
            "mamba_conv_bias": _has(metadata, "ssm_conv1d.bias"),
            "mamba_proj_bias": _has(metadata, "ssm_in.bias"),
            "num_local_experts": experts,
            "num_experts_per_tok": metadata.integer("expert_used_count", 0),
            "shared_intermediate_size": shared if down is None else down.shape[-1],
            "position_embedding_type": "rope" if rotates else "nope",
            "attention_bias": _has(metadata, "attn_q.bias"),
        }
    )


def _nemotron_h(metadata: Metadata) -> dict[str, Any]:
    heads, width = _recurrent_heads(metadata)
    layers, experts = num_layers(metadata), metadata.integer("expert_count", 0)
    sizes = metadata.of_layers("feed_forward_length", layers)
    attention, tensors = _key_heads(metadata), metadata.file.tensors
    inner = ["moe" if f"blk.{layer}.ffn_gate_inp.weight" in tensors else "mlp" for layer in range(len(sizes))]
    kinds = [
        _FULL if keys else kind if size else _LINEAR for keys, size, kind in zip(attention, sizes, inner, strict=True)
    ]
    dense = [size for size, kind in zip(sizes, kinds, strict=True) if kind == "mlp"]
    found = {
        "num_key_value_heads": max(attention, default=0),
        "layers_block_type": kinds,
        "intermediate_size": max(dense or sizes, default=0),
        "layer_norm_epsilon": metadata.number("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": heads,
        "mamba_head_dim": width,
        "n_groups": metadata.integer("ssm.group_count"),
        "ssm_state_size": metadata.integer("ssm.state_size"),
        "conv_kernel": metadata.integer("ssm.conv_kernel"),
        "use_conv_bias": _has(metadata, "ssm_conv1d.bias"),
        "use_bias": _has(metadata, "ssm_in.bias"),
        "mlp_bias": _has(metadata, "ffn_up.bias"),
        "attention_bias": _has(metadata, "attn_q.bias"),
        "mlp_hidden_act": "relu2",
    }
    if not experts:
        return found
    routed = routed_experts(metadata)
    del routed["first_k_dense_replace"]
    return (
        found
        | routed
        | {
            "moe_shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
            "moe_latent_size": metadata.integer("moe_latent_size", 0) or None,
        }
    )


def _mamba2(metadata: Metadata) -> dict[str, Any]:
    heads, width = _recurrent_heads(metadata)
    hidden = metadata.integer("embedding_length")
    if hidden < 1 or heads * width % hidden:
        raise UnsupportedModelError(
            f"{metadata.file.path}: {metadata.key('ssm.inner_size')}={heads * width} is not supported: expected a "
            f"multiple of embedding_length={hidden}"
        )
    return {
        "num_heads": heads,
        "head_dim": width,
        "expand": heads * width // hidden,
        "n_groups": metadata.integer("ssm.group_count"),
        "state_size": metadata.integer("ssm.state_size"),
        "conv_kernel": metadata.integer("ssm.conv_kernel"),
        "layer_norm_epsilon": metadata.number("attention.layer_norm_rms_epsilon"),
        "use_bias": _has(metadata, "ssm_in.bias"),
        "use_conv_bias": _has(metadata, "ssm_conv1d.bias"),
    }


_LFM2_LAYER = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
} | {f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")}
_LFM2_OUTER = {"token_embd_norm.weight": "model.embedding_norm.weight"}
_KEY_HEADS = frozenset({"attention.head_count_kv"})
_LFM2 = Architecture(
    name="Lfm2ForCausalLM",
    model_type="lfm2",
    models="LFM2, LFM2.5",
    fields=_lfm2,
    names=TensorNames(_LFM2_LAYER, _LFM2_OUTER),
    unlike_layers=_KEY_HEADS,
)

_DELTA_NET = {f"ssm_{part}": f"linear_attn.{part}" for part in ("conv1d", "norm")} | {
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_out": "linear_attn.out_proj",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_in": "linear_attn.in_proj_qkvz",  # as early files of Qwen3-Next have it
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "post_attention_norm": "post_attention_layernorm",
}
_SHARED = {f"ffn_{each}_shexp": f"mlp.shared_expert.{each}_proj" for each in ("gate", "up", "down")}
_SHARED |= {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_QWEN35 = Architecture(
    name="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    models="Qwen3.5 (its text)",
    fields=_delta_net,
    names=TensorNames(_DELTA_NET, norms_added=1.0, norms_kept=("linear_attn.norm",)),
    rope_fields=frozenset({"dimension_sections"}),
    is_partial=True,
    recurrence=_order,
)
_QWEN35_MOE = replace(
    _QWEN35,
    name="Qwen3_5MoeForCausalLM",
    model_type="qwen3_5_moe_text",
    models="Qwen3.5 and 3.6 with experts (their text)",
    fields=_delta_net_moe,
    names=replace(_QWEN35.names, layer=_DELTA_NET | EXPERTS | _SHARED),
    separates_experts=True,
)

_SSM = ("conv1d", "norm")
_MIXER = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt": "dt_bias", "ssm_in": "in_proj", "ssm_out": "out_proj"}
_MIXER |= {f"ssm_{part}": part for part in _SSM}
_OF_BACKBONE = {
    "token_embd.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
}
_GRANITE_LAYER = {name: f"mamba.{own}" for name, own in _MIXER.items()}
_GRANITE_HYBRID = Architecture(
    name="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    models="Granite 4 with Mamba-2",
    fields=_granite_hybrid,
    names=TensorNames(
        _GRANITE_LAYER | {"ffn_down": "shared_mlp.output_linear"},
        joined={"shared_mlp.input_linear": ("ffn_gate", "ffn_up")},
        is_paired=True,
    ),
    unlike_layers=_KEY_HEADS,
)
_GRANITE_HYBRID_MOE = replace(
    _GRANITE_HYBRID,
    models="with experts",
    names=TensorNames(
        _GRANITE_LAYER
        | {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_shexp": "shared_mlp.output_linear"},
        joined={"shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp")},
        is_paired=True,
        experts="block_sparse_moe",
    ),
    separates_experts=True,
)
_NEMOTRON_H = Architecture(
    name="NemotronHForCausalLM",
    model_type="nemotron_h",
    models="Nemotron-H, Nemotron Nano 2",
    fields=_nemotron_h,
    names=TensorNames(
        {name: f"mixer.{own}" for name, own in _MIXER.items()}
        | {f"attn_{each}": f"mixer.{each}_proj" for each in "qkv"}
        | {"attn_norm": "norm", "attn_output": "mixer.o_proj"}
        | {f"ffn_{each}": f"mixer.{each}_proj" for each in ("up", "down")}
        | {f"ffn_{each}_shexp": f"mixer.shared_experts.{each}_proj" for each in ("up", "down")}
        | {"ffn_gate_inp": "mixer.gate", "exp_probs_b": "mixer.gate.e_score_correction_bias"}
        | {"ffn_latent_down": "mixer.fc1_latent_proj", "ffn_latent_up": "mixer.fc2_latent_proj"},
        _OF_BACKBONE,
        is_paired=True,
        layers="backbone.layers",
        experts="mixer.experts",
    ),
    unlike_layers=_KEY_HEADS | {"feed_forward_length"},
)

ARCHITECTURES = {
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2,
        name="Lfm2MoeForCausalLM",
        model_type="lfm2_moe",
        models="LFM2 with experts",
        fields=_lfm2_moe,
        names=replace(
            _LFM2.names, experts="feed_forward.experts", projections={"gate": "w1", "up": "w3", "down": "w2"}
        ),
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_MOE,
    "qwen3next": replace(
        _QWEN35_MOE,
        name="Qwen3NextForCausalLM",
        model_type="qwen3_next",
        models="Qwen3-Next",
        fields=lambda metadata: _delta_net_moe(metadata) | {SEPARATE_GATES: not _has(metadata, "ssm_in.weight")},
        recurrence=None,
    ),
    "granitehybrid": replace(
        _GRANITE_HYBRID,
        variants=((lambda metadata: metadata.integer("expert_count", 0) > 0, _GRANITE_HYBRID_MOE),),
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": replace(_NEMOTRON_H, models="Nemotron 3"),
    "mamba2": Architecture(
        name="Mamba2ForCausalLM",
        model_type="mamba2",
        models="Mamba-2, Codestral Mamba",
        fields=_mamba2,
        names=TensorNames(
            {name: f"mixer.{own}" for name, own in _MIXER.items()} | {"attn_norm": "norm"},
            _OF_BACKBONE,
            layers="backbone.layers",
        ),
    ),
}
