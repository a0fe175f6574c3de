"""Models of other kinds than the bundled one, with random weights and its tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config, Gemma3TextConfig, PretrainedConfig, Qwen3MoeConfig

from tests.ring import MODEL

_SIZES: dict[str, Any] = {
    "vocab_size": 2560,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_EXPERTS = {"moe_intermediate_size": 128, "num_experts_per_tok": 2}
_FULL, _WINDOW = "full_attention", "sliding_attention"

KINDS: dict[str, Callable[[], PretrainedConfig]] = {
    "experts": lambda: Qwen3MoeConfig(**_SIZES, **_EXPERTS, num_key_value_heads=2, head_dim=64, num_experts=16),
    "latents": lambda: DeepseekV2Config(
        **_SIZES,
        **_EXPERTS,
        num_key_value_heads=4,
        kv_lora_rank=128,
        q_lora_rank=96,
        qk_nope_head_dim=48,
        qk_rope_head_dim=32,
        v_head_dim=48,
        n_routed_experts=8,
        n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "windows": lambda: Gemma3TextConfig(
        **_SIZES,
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=48,
        layer_types=[_WINDOW, _WINDOW, _WINDOW, _FULL],
    ),
}


def make(kind: str, directory: Path) -> Path:
    """A checkpoint of that kind."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM
    model.from_config(KINDS[kind](), dtype=torch.bfloat16).save_pretrained(directory)
    for file in MODEL.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens", "generation_config")):
            shutil.copy(file, directory)
    return directory
