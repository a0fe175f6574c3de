"""Multimodal checkpoints as they are published: what their config.json says of their text, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

QWEN2 = {"vocab_size": 151936, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
QWEN2_VL = {
    **QWEN2,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vision_config": {"hidden_size": 1280},
}
QWEN3_VL = {
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "head_dim": 128,
    "rope_theta": 5e6,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint's config.json, in part."""

    name: str
    architecture: str
    model_type: str
    fields: dict[str, Any]
    text_weights: float | None = None
    """Numbers in its text model, in thousands of millions; None if it is refused."""
    refusal: str = ""
    """A part of the refusal."""


PUBLISHED = (
    Published(
        "google/gemma-3-4b-it",
        "Gemma3ForConditionalGeneration",
        "gemma3",
        {
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152},
            "eos_token_id": [1, 106],
        },
        3.88,
    ),
    Published(
        "Qwen/Qwen2-VL-2B-Instruct",
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        {
            **QWEN2_VL,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        1.544,
    ),
    Published(
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        {
            **QWEN2_VL,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        3.086,
    ),
    Published(
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        {
            **QWEN2_VL,
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
        },
        7.616,
    ),
    Published(
        "Qwen/Qwen3-VL-8B-Instruct",
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        {
            "text_config": {
                **QWEN3_VL,
                "model_type": "qwen3_vl_text",
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
            },
            "tie_word_embeddings": False,
        },
        8.19,
    ),
    Published(
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        {
            "text_config": {
                **QWEN3_VL,
                "model_type": "qwen3_vl_moe_text",
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "tie_word_embeddings": False,
            },
            "tie_word_embeddings": False,
        },
        30.53,
    ),
    Published(
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        "Mistral3ForConditionalGeneration",
        "mistral3",
        {
            "text_config": {
                "model_type": "mistral",
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "num_hidden_layers": 40,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 131072,
                "max_position_embeddings": 131072,
                "rope_theta": 1e9,
                "sliding_window": None,
            },
            "tie_word_embeddings": False,
        },
        23.57,
    ),
    Published(
        "llava-hf/llava-1.5-7b-hf",
        "LlavaForConditionalGeneration",
        "llava",
        {
            "text_config": {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "torch_dtype": "float16",
                "vocab_size": 32064,
            },
            "vision_config": {"model_type": "clip_vision_model"},
            "tie_word_embeddings": False,
        },
        6.74,
    ),
    Published(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "Llama4ForConditionalGeneration",
        "llama4",
        {
            "text_config": {
                "model_type": "llama4_text",
                "attention_chunk_size": 8192,
                "head_dim": 128,
                "hidden_size": 5120,
                "interleave_moe_layer_step": 1,
                "intermediate_size": 8192,
                "intermediate_size_mlp": 16384,
                "max_position_embeddings": 10485760,
                "no_rope_layers": [],
                "num_attention_heads": 40,
                "num_hidden_layers": 48,
                "num_key_value_heads": 8,
                "num_local_experts": 16,
                "rope_scaling": {
                    "factor": 16.0,
                    "high_freq_factor": 1.0,
                    "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "llama3",
                },
                "rope_theta": 500000.0,
                "vocab_size": 202048,
            },
            "vision_config": {"model_type": "llama4_vision_model"},
            "tie_word_embeddings": False,
        },
        107.77,
    ),
    Published(
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        "Llama4ForConditionalGeneration",
        "llama4",
        {
            "text_config": {
                "model_type": "llama4_text",
                "attention_chunk_size": 8192,
                "interleave_moe_layer_step": 2,
                "max_position_embeddings": 1048576,
                "no_rope_layers": [],
                "num_local_experts": 128,
                "rope_scaling": None,
                "use_qk_norm": False,
            },
            "tie_word_embeddings": False,
        },
        400.7,
    ),
    Published(
        "zai-org/GLM-4.5V",
        "Glm4vMoeForConditionalGeneration",
        "glm4v_moe",
        {
            "text_config": {
                "model_type": "glm4v_moe_text",
                "attention_bias": True,
                "first_k_dense_replace": 1,
                "head_dim": 128,
                "hidden_size": 4096,
                "intermediate_size": 10944,
                "moe_intermediate_size": 1408,
                "n_group": 1,
                "n_routed_experts": 128,
                "n_shared_experts": 1,
                "num_attention_heads": 96,
                "num_experts_per_tok": 8,
                "num_hidden_layers": 46,
                "num_key_value_heads": 8,
                "partial_rotary_factor": 0.5,
                "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]},
                "topk_group": 1,
                "use_qk_norm": False,
                "vocab_size": 151552,
            },
            "tie_word_embeddings": False,
        },
        106.85,
    ),
    Published(
        "google/gemma-3n-E4B-it",
        "Gemma3nForConditionalGeneration",
        "gemma3n",
        {"text_config": {"model_type": "gemma3n_text"}},
        refusal="is a multimodal model",
    ),
    Published(
        "google/paligemma2-3b-mix-224",
        "PaliGemmaForConditionalGeneration",
        "paligemma",
        {"text_config": {"model_type": "gemma2"}},
        refusal="is a multimodal model",
    ),
    Published(
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "MllamaForConditionalGeneration",
        "mllama",
        {"text_config": {"model_type": "mllama_text_model"}, "vision_config": {}},
        refusal="is a multimodal model",
    ),
    Published(
        "moonshotai/Kimi-VL-A3B-Instruct",
        "KimiVLForConditionalGeneration",
        "kimi_vl",
        {"text_config": {"model_type": "deepseek_v3"}, "auto_map": {"AutoModelForCausalLM": "modeling_kimi_vl.X"}},
        refusal="is a multimodal model",
    ),
    Published(
        "Qwen/Qwen3.5-9B",
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        {"text_config": {"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"]}},
        refusal="is a multimodal model",
    ),
)
