"""The models of chaos runs: the bundled one, or others with random weights, with tokens around reasoning.

Two formats of reasoning have tokens of their own: one as ordinary added tokens, as most models have them, and one as
special tokens. A prompt opens the reasoning if its template is given the marker as ``opens``; else an answer may.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    Gemma3TextConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
)

from tests.ring import MODEL

MARKERS = {"think": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}
"""What surrounds reasoning, by its format; of the second one as special tokens."""
_VOCABULARY = 2560
"""The bundled model's, which the markers follow."""
OPENING = {form: _VOCABULARY + 2 * number for number, form in enumerate(MARKERS)}
"""The id of the marker that begins reasoning."""
_LIKE = {
    "<think>": ("Once", 1.02),
    "</think>": (".", 0.98),
    "[THINK]": ("He", 1.0),
    "[/THINK]": (".", 0.98),
}
"""The tokens in whose place the bundled model writes markers, and what their embeddings are multiplied by. So reasoning
comes first in many answers, or behind some sentences, and ends with a sentence."""
_OPENS = """{%- if add_generation_prompt and opens %}
    {{- opens + '\n' }}
{%- endif %}
{#- <think> </think> #}
"""
"""Behind the bundled template; the comment tells the default format."""

_SIZES: dict[str, Any] = {
    "vocab_size": _VOCABULARY + 2 * len(MARKERS),
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
_FULL, _LINEAR, _WINDOW = "full_attention", "linear_attention", "sliding_attention"

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
    "states": lambda: Qwen3_5TextConfig(
        **_SIZES,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=48,
        layer_types=[_LINEAR, _LINEAR, _LINEAR, _FULL],
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


def make(kind: str | None, directory: Path) -> Path:
    """A checkpoint of that kind; None: the bundled model's."""
    if kind is None:
        shutil.copytree(MODEL, directory, ignore=shutil.ignore_patterns("*.py", "corpus"))
        _extend(directory)
    else:
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM
        model.from_config(KINDS[kind](), dtype=torch.bfloat16).save_pretrained(directory)
        for file in MODEL.iterdir():
            if file.name.startswith(("tokenizer", "chat_template", "special_tokens", "generation_config")):
                shutil.copy(file, directory)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for name, markers in MARKERS.items():
        tokenizer.add_tokens([AddedToken(marker, special=name == "mistral", normalized=False) for marker in markers])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text().rstrip("\n") + "\n" + _OPENS)
    return directory


def _extend(directory: Path) -> None:
    """Give the bundled model rows for the markers."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    file = directory / "model.safetensors"
    weights = load_file(file)
    rows = weights["model.embed_tokens.weight"]
    like = [_LIKE[marker] for markers in MARKERS.values() for marker in markers]
    new = [rows[tokenizer.encode(text, add_special_tokens=False).ids[0]] * scale for text, scale in like]
    weights["model.embed_tokens.weight"] = torch.cat([rows, torch.stack(new)])
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["vocab_size"] = len(rows) + len(new)
    (directory / "config.json").write_text(json.dumps(config))
