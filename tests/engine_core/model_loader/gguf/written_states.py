"""How convert_hf_to_gguf.py (llama.cpp) writes models whose layers keep states: their fields, and what it does to their
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

ARCHITECTURES = {
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "granitemoehybrid": "granitehybrid",
    "mamba2": "mamba2",
}
"""By ``model_type``; Nemotron-H has one with experts and one without."""
_DELTA_NETS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_MAMBAS = ("granitemoehybrid", "mamba2", "nemotron_h")
NORMS_PLUS_ONE = _DELTA_NETS
_NEXT = "qwen3_next"


def architecture_of(config: PretrainedConfig) -> str | None:
    """``general.architecture``; None: the model keeps no states."""
    kind = config.model_type
    if kind == "granitemoehybrid" and "linear_attention" not in config.layer_types:
        return None
    if kind == "nemotron_h":
        return "nemotron_h_moe" if "moe" in config.layer_types else "nemotron_h"
    return ARCHITECTURES.get(kind)


def fields(config: PretrainedConfig) -> dict[str, Any]:
    """Those beside the fields of all models, which they override."""
    match config.model_type:
        case "lfm2" | "lfm2_moe":
            return _lfm2(config)
        case kind if kind in _DELTA_NETS:
            return _delta_net(config)
        case "granitemoehybrid":
            heads = config.mamba_n_heads
            return _key_heads(config) | {
                "ssm.conv_kernel": config.mamba_d_conv,
                "ssm.state_size": config.mamba_d_state,
                "ssm.group_count": config.mamba_n_groups,
                "ssm.inner_size": config.mamba_expand * config.hidden_size,
                "ssm.time_step_rank": heads,
                "rope.scaling.finetuned": config.position_embedding_type == "rope",
            }
        case "nemotron_h":
            return _nemotron(config)
        case _:
            return {
                "context_length": 2**20,
                "embedding_length": config.hidden_size,
                "feed_forward_length": 0,
                "attention.head_count": 0,
                "block_count": config.num_hidden_layers,
                "ssm.conv_kernel": config.conv_kernel,
                "ssm.inner_size": config.num_heads * config.head_dim,
                "ssm.state_size": config.state_size,
                "ssm.time_step_rank": config.num_heads,
                "ssm.group_count": config.n_groups,
                "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
                "tokenizer.ggml.model": "no_vocab",
                "tokenizer.ggml.eos_token_id": 2,
            }


def _key_heads(config: PretrainedConfig) -> dict[str, Any]:
    heads = config.num_key_value_heads
    return {"attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in config.layer_types]}


def _lfm2(config: PretrainedConfig) -> dict[str, Any]:
    found = _key_heads(config) | {
        "shortconv.l_cache": config.conv_L_cache,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    if config.model_type == "lfm2_moe":
        return found | {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "leading_dense_block_count": config.num_dense_layers,
            "expert_gating_func": 2,
        }
    size = config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        unit = config.block_multiple_of
        size = int(config.block_ffn_dim_multiplier * int(2 * size / 3))
        size = unit * ((size + unit - 1) // unit)
    return found | {"feed_forward_length": size}


def _delta_net(config: PretrainedConfig) -> dict[str, Any]:
    heads = config.linear_num_value_heads
    found: dict[str, Any] = {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config.linear_value_head_dim * heads,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config.layer_types],
    }
    if config.model_type != _NEXT:
        found["rope.dimension_sections"] = [11, 11, 10, 0]
    if config.model_type != "qwen3_5_text":
        found |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        }
    return found


def _nemotron(config: PretrainedConfig) -> dict[str, Any]:
    kinds = config.layer_types
    sizes = {"moe": getattr(config, "moe_intermediate_size", 0), "mlp": config.intermediate_size}
    found = _key_heads(config) | {
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "feed_forward_length": [sizes.get(kind, 0) for kind in kinds],
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.time_step_rank": config.mamba_num_heads,
        "rope.scaling.finetuned": False,
    }
    if "moe" not in kinds:
        return found
    found |= {"moe_latent_size": config.moe_latent_size} if config.moe_latent_size is not None else {}
    return found | {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


@dataclass
class Change:
    """What is written of a tensor, and how to come back."""

    name: str
    """For the converter's table of names."""
    numbers: np.ndarray
    back: Callable[[np.ndarray], np.ndarray]


def changed(config: PretrainedConfig, name: str, numbers: np.ndarray) -> list[Change] | None:
    """The tensors that become of one; None: it is as in models without states."""
    kind, shape = config.model_type, numbers.shape
    if kind.startswith("lfm2"):
        if name.endswith("expert_bias"):
            return [Change(f"{name}.bias", numbers, lambda x: x)]
        if ".conv.conv." in name:
            return [_reshaped(name, numbers, (shape[0], shape[-1]) if name.endswith("weight") else shape)]
        return None
    if kind in _DELTA_NETS and ".linear_attn." in name:
        return _of_delta_net(config, name, numbers)
    if kind in _MAMBAS and any(part in name for part in (".mixer.", ".mamba.")):
        return _of_mamba(config, name, numbers)
    return None


def _reshaped(name: str, numbers: np.ndarray, shape: tuple[int, ...]) -> Change:
    return Change(name, numbers.reshape(shape), lambda x: x.reshape(numbers.shape))


def _rate(name: str, numbers: np.ndarray, shape: tuple[int, ...]) -> Change:
    return Change(name, _rates(numbers).reshape(shape), lambda x: numbers)  # never quantized


def _rates(numbers: np.ndarray) -> np.ndarray:
    rates: np.ndarray = -torch.from_numpy(numbers).exp().numpy()
    return rates


def _of_mamba(config: PretrainedConfig, name: str, numbers: np.ndarray) -> list[Change] | None:
    end, groups = name.rpartition(".")[2], config.mamba_n_groups if ".mamba." in name else config.n_groups
    match end:
        case "A_log":
            return [_rate(name, numbers, (-1, 1))]
        case "D":
            return [_reshaped(name, numbers, (-1, 1))]
        case "dt_bias":
            return [Change(name.replace("dt_bias", "dt_proj.bias"), numbers, lambda x: x)]
    if "conv1d.weight" in name:
        return [_reshaped(name, numbers, (len(numbers), numbers.shape[-1]))]
    if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        return [_reshaped(name, numbers, (groups, -1))]
    return None


def _of_delta_net(config: PretrainedConfig, name: str, numbers: np.ndarray) -> list[Change]:
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    part = name.split(".linear_attn.")[1].removesuffix(".weight")
    if config.model_type == _NEXT and part == "in_proj_qkvz":
        return _qkv_and_z(name, numbers, keys, [key_dim, key_dim, heads // keys * value_dim, heads // keys * value_dim])
    order = np.arange(len(numbers) if part != "out_proj" else numbers.shape[1])
    if config.model_type != _NEXT and part != "norm":
        first = 2 * keys * key_dim if part in ("in_proj_qkv", "conv1d") else 0
        tiled = order[first:].reshape(keys, heads // keys, -1).swapaxes(0, 1).flatten()
        order = np.concatenate([order[:first], tiled])
    restored = np.argsort(order)
    if part == "out_proj":
        return [Change(name, numbers[:, order], lambda x: x[:, restored])]
    shape = numbers.shape
    match part:
        case "A_log":
            return [Change(name, _rates(numbers[order]), lambda x: numbers)]
        case "dt_bias":
            return [Change(name.replace("dt_bias", "dt_proj.bias"), numbers[order], lambda x: x[restored])]
        case "conv1d":
            return [Change(name, numbers[order].squeeze(1), lambda x: x[restored].reshape(shape))]
    return [Change(name, numbers[order], lambda x: x[restored])]


def _qkv_and_z(name: str, numbers: np.ndarray, keys: int, sizes: list[int]) -> list[Change]:
    """Queries, keys and values of all key heads in one tensor, gates in another."""
    by_key = np.split(numbers.reshape(keys, sum(sizes), -1), np.cumsum(sizes)[:-1], axis=1)
    q, k, v, z = (each.reshape(-1, numbers.shape[1]) for each in by_key)
    found: dict[str, np.ndarray] = {}

    def back(which: str) -> Callable[[np.ndarray], np.ndarray]:
        def taken(x: np.ndarray) -> np.ndarray:
            found[which] = x
            if len(found) < 2:
                return np.empty(0, np.float32)
            parts = np.split(found["qkv"], np.cumsum([keys * size for size in sizes[:2]]))
            parts = [each.reshape(keys, -1, numbers.shape[1]) for each in (*parts, found["z"])]
            return np.concatenate(parts, 1).reshape(numbers.shape)

        return taken

    return [
        Change(name.replace("in_proj_qkvz", "in_proj_qkv"), np.concatenate([q, k, v]), back("qkv")),
        Change(name.replace("in_proj_qkvz", "in_proj_z"), z, back("z")),
    ]
