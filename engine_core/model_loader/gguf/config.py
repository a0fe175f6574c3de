"""A GGUF file's metadata and tensors, translated to config.json and generation_config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.names import Source, sources_of, types_of
from engine_core.model_loader.gguf.projector import require_language_model
from engine_core.model_loader.gguf.reader import GgufFile, GgufTensor
from engine_core.model_loader.gguf.rope import rope_parameters
from engine_core.model_loader.gguf.tokenizer import eos_token_ids
from engine_core.model_loader.gguf.types import FLOAT_TYPES

_SIGMOID = 2
"""A value of ``expert_gating_func``."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class GgufDescription:
    """A checkpoint's configuration, and where its tensors are."""

    config: dict[str, Any]
    """As in config.json."""
    generation: dict[str, Any]
    """As in generation_config.json."""
    sources: dict[str, Source]
    """By their names in transformers' format."""


def describe(file: GgufFile) -> GgufDescription:
    """Raise ``CheckpointError`` naming the file and the field, ``UnsupportedModelError`` naming the architecture."""
    metadata = Metadata.of(file)
    require_language_model(file)
    name = metadata.architecture
    if name == "llama" and metadata.integer("expert_count", 0) > 0:
        name = "mixtral"
    if (read := _ARCHITECTURES.get(name)) is None:
        raise UnsupportedModelError(
            f"{file.path} has the architecture {name!r}, which is not supported: expected one of "
            f"{', '.join(known for known in _ARCHITECTURES if known != 'mixtral')}"
        )
    config = _common(metadata) | read(metadata)
    heads = config["num_attention_heads"], config["num_key_value_heads"]
    sources = sources_of(file, name, heads)
    types = types_of(sources)
    if any(each not in FLOAT_TYPES for each in types.values()) or name == "gpt-oss":
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
    return GgufDescription(config | {"dtype": "bfloat16"}, _generation(metadata), sources)


def _common(metadata: Metadata) -> dict[str, Any]:
    """The fields that all architectures share."""
    file, heads = metadata.file, metadata.integer("attention.head_count")
    table = _tensor(file, "token_embd.weight")
    hidden = metadata.integer("embedding_length")
    default_head_dim = hidden // heads if heads > 0 else 0
    return {
        "vocab_size": table.shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("feed_forward_length", 0),
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("attention.head_count_kv", heads),
        "head_dim": metadata.integer("attention.key_length", default_head_dim),
        "max_position_embeddings": metadata.integer("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "rope_parameters": rope_parameters(metadata, default_head_dim),
    }


def _llama(metadata: Metadata) -> dict[str, Any]:
    biased = "blk.0.ffn_gate.bias" in metadata.file.tensors
    return _named("LlamaForCausalLM", "llama") | {"mlp_bias": biased}


def _mixtral(metadata: Metadata) -> dict[str, Any]:
    return _named("MixtralForCausalLM", "mixtral") | {
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "sliding_window": None,
    }


def _qwen2(metadata: Metadata) -> dict[str, Any]:
    return _named("Qwen2ForCausalLM", "qwen2") | {"use_sliding_window": False}


def _qwen2_moe(metadata: Metadata) -> dict[str, Any]:
    return (
        _named("Qwen2MoeForCausalLM", "qwen2_moe")
        | _qwen_experts(metadata, renormalized=False)
        | {
            "qkv_bias": "blk.0.attn_q.bias" in metadata.file.tensors,
            "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
        }
    )


def _qwen3(metadata: Metadata) -> dict[str, Any]:
    return _named("Qwen3ForCausalLM", "qwen3") | {"use_sliding_window": False}


def _qwen3_moe(metadata: Metadata) -> dict[str, Any]:
    return _named("Qwen3MoeForCausalLM", "qwen3_moe") | _qwen_experts(metadata, renormalized=True)


def _qwen_experts(metadata: Metadata, *, renormalized: bool) -> dict[str, Any]:
    return {
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", renormalized),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def _gemma2(metadata: Metadata) -> dict[str, Any]:
    return (
        _named("Gemma2ForCausalLM", "gemma2")
        | _gemma(metadata, of_hidden=46, pattern=2)
        | {
            "attn_logit_softcapping": metadata.number("attn_logit_softcapping"),
        }
    )


def _gemma3(metadata: Metadata) -> dict[str, Any]:
    full = rope_parameters(metadata, 0)
    sliding = {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", 10000.0)}
    return (
        _named("Gemma3ForCausalLM", "gemma3_text")
        | _gemma(metadata, of_hidden=62, pattern=6)
        | {
            "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
            "use_bidirectional_attention": not metadata.flag("attention.causal", True),
        }
    )


def _gemma(metadata: Metadata, *, of_hidden: int, pattern: int) -> dict[str, Any]:
    """``of_hidden``: the layer count of the model size that scales scores by hidden size / heads."""
    layers, heads = metadata.integer("block_count"), metadata.integer("attention.head_count")
    by_hidden = layers == of_hidden and heads > 0
    every = metadata.integer("attention.sliding_window_pattern", pattern)
    softcap = metadata.number("final_logit_softcapping", 0.0)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": (
            metadata.integer("embedding_length") // heads if by_hidden else metadata.integer("attention.key_length")
        ),
        "final_logit_softcapping": softcap or None,
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": _windows(layers, every),
    }


def _phi3(metadata: Metadata) -> dict[str, Any]:
    return _named("Phi3ForCausalLM", "phi3") | {
        "sliding_window": metadata.integer("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": metadata.integer(
            "rope.scaling.original_context_length", metadata.integer("context_length")
        ),
        "pad_token_id": None,
    }


def _olmo2(metadata: Metadata) -> dict[str, Any]:
    if metadata.has("attention.sliding_window"):
        raise UnsupportedModelError(f"{metadata.file.path} is OLMo 3, whose GGUF files are not supported")
    return _named("Olmo2ForCausalLM", "olmo2")


def _granite(metadata: Metadata) -> dict[str, Any]:
    return _named("GraniteForCausalLM", "granite") | {
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "attention_multiplier": metadata.number("attention.scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


def _smollm3(metadata: Metadata) -> dict[str, Any]:
    return _named("SmolLM3ForCausalLM", "smollm3") | {"no_rope_layer_interval": 4, "use_sliding_window": False}


def _glm4(metadata: Metadata) -> dict[str, Any]:
    return _named("Glm4ForCausalLM", "glm4")


def _glm4_moe(metadata: Metadata) -> dict[str, Any]:
    following = metadata.integer("nextn_predict_layers", 0)
    return (
        _named("Glm4MoeForCausalLM", "glm4_moe")
        | _routed_experts(metadata)
        | {
            "num_hidden_layers": metadata.integer("block_count") - following,
            "num_nextn_predict_layers": following,
            "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.file.tensors,
        }
    )


def _routed_experts(metadata: Metadata) -> dict[str, Any]:
    """DeepSeek's experts; one group if the file names none, as in llama.cpp."""
    return {
        "n_routed_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "n_shared_experts": metadata.integer("expert_shared_count", 0),
        "first_k_dense_replace": metadata.integer("leading_dense_block_count", 0),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "norm_topk_prob": metadata.flag("expert_weights_norm", False),
        "n_group": metadata.integer("expert_group_count", 1),
        "topk_group": metadata.integer("expert_group_used_count", 1),
    }


def _deepseek2(metadata: Metadata) -> dict[str, Any]:
    rotated, rank = metadata.integer("rope.dimension_count"), metadata.integer("attention.kv_lora_rank")
    split = metadata.has("attention.key_length_mla")
    keys = metadata.integer("attention.key_length_mla" if split else "attention.key_length")
    values = metadata.integer("attention.value_length_mla" if split else "attention.value_length")
    rope = {key: value for key, value in rope_parameters(metadata, rotated).items() if key != "partial_rotary_factor"}
    if rope["rope_type"] == "yarn":
        # The converter writes 0.1 × mscale_all_dim; models have mscale equal to it.
        weight = float(f"{10 * metadata.number('rope.scaling.yarn_log_multiplier', 0.0):.7g}")
        rope |= {"mscale": weight, "mscale_all_dim": weight} if weight else {}
    experts = _routed_experts(metadata)
    is_v3 = metadata.integer("expert_gating_func", 1) == _SIGMOID
    named = _named("DeepseekV3ForCausalLM", "deepseek_v3") | {"rope_interleave": True}
    if not is_v3:
        method = "greedy" if experts["n_group"] == 1 else "group_limited_greedy"
        named = _named("DeepseekV2ForCausalLM", "deepseek_v2") | {"topk_method": method}
    return (
        named
        | experts
        | {
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
    )


def _gpt_oss(metadata: Metadata) -> dict[str, Any]:
    return _named("GptOssForCausalLM", "gpt_oss") | {
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": _windows(metadata.integer("block_count"), 2),
        "rope_parameters": rope_parameters(metadata, 0) | {"truncate": False},
    }


_ARCHITECTURES: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "granite": _granite,
    "smollm3": _smollm3,
    "glm4": _glm4,
    "glm4moe": _glm4_moe,
    "deepseek2": _deepseek2,
    "gpt-oss": _gpt_oss,
}


def _named(architecture: str, model_type: str) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type}


def _windows(layers: int, every: int) -> list[str]:
    """``layer_types`` in which every ``every``-th layer has full attention."""
    if not 0 <= layers < 2**16 or every < 1:
        return []
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(1, layers + 1)]


def _tensor(file: GgufFile, name: str) -> GgufTensor:
    if (found := file.tensors.get(name)) is None:
        raise CheckpointError(f"{file.path} has no tensor {name}")
    return found


def _generation(metadata: Metadata) -> dict[str, Any]:
    """The eos tokens, and the publisher's sampling parameters."""
    sampling = {
        name: metadata.number(f"general.sampling.{key}")
        for key, name in _SAMPLING.items()
        if metadata.has(f"general.sampling.{key}")
    }
    if "top_k" in sampling:
        sampling["top_k"] = int(sampling["top_k"])
    return {"eos_token_id": eos_token_ids(metadata.file), **sampling}
