"""Models to measure: real shapes with random weights, which cost the same as trained ones.

Flags that take a model accept a shape's name; its checkpoint is written at the first use, below ``--models``.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from engine_core.errors import CheckpointError
from engine_core.model_loader.packaged import PACKAGED_MODELS, packaged_path

_VOCABULARY = 16_000
_SPECIAL_TOKENS = ["<|end|>"]
_COMPLETE = "tokenizer.json"
"""The last file that is written."""


def _tiny_llama() -> PretrainedConfig:
    """11 million weights, so that overhead dominates."""
    return LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )


def _qwen3_600m() -> PretrainedConfig:
    """Qwen3-0.6B: 596 million weights, of which 156 million are the tied embedding."""
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=0,
        eos_token_id=0,
    )


def _qwen3_moe() -> PretrainedConfig:
    """Six of the 48 layers of Qwen3-30B-A3B: 3.9 billion weights, 0.65 billion active per token (8 of 128 experts)."""
    config: PretrainedConfig = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        num_hidden_layers=6,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=0,
        eos_token_id=0,
    )
    return config


def _deepseek_v2_lite() -> PretrainedConfig:
    """The layers and latents of DeepSeek-V2-Lite, half as wide: 3 billion weights, 0.66 billion active per token (6 of
    64 experts, and 2 shared ones). The first layer is dense.
    """
    config: PretrainedConfig = AutoConfig.for_model(
        "deepseek_v2",
        vocab_size=102_400,
        hidden_size=1024,
        intermediate_size=5472,
        moe_intermediate_size=512,
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_shared_experts=2,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        routed_scaling_factor=1.0,
        num_hidden_layers=27,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=16_384,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        bos_token_id=0,
        eos_token_id=0,
    )
    return config


def _llama_8b() -> PretrainedConfig:
    """Llama-3.1-8B: 8.03 billion weights. For GPUs, which make random weights (``--load-format dummy``)."""
    return LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        bos_token_id=0,
        eos_token_id=0,
    )


SHAPES: dict[str, Callable[[], PretrainedConfig]] = {
    "tiny-llama": _tiny_llama,
    "qwen3-0.6b": _qwen3_600m,
    "qwen3-moe": _qwen3_moe,
    "deepseek-v2-lite": _deepseek_v2_lite,
}

WITHOUT_WEIGHTS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama-3.1-8b": _llama_8b,
    "qwen3-0.6b": _qwen3_600m,
    "tiny-llama": _tiny_llama,
}
"""Shapes that ``describe_model`` knows."""


def describe_model(name: str, directory: Path, *, tokenizer: bool = True) -> Path:
    """Write a checkpoint of a shape without weights to ``directory``, for engines that make random weights.

    ``tokenizer``: with one, which takes seconds; who sends token ids needs none.
    """
    config, arch = WITHOUT_WEIGHTS[name](), {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    config.architectures = [arch[config.model_type]]
    config.dtype = torch.bfloat16
    config.save_pretrained(directory)
    if tokenizer:
        write_tokenizer(directory)
    return directory


def model_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flags that select the model."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--model", default=default, help=f"a checkpoint's directory, or one of {', '.join(SHAPES)}")
    parser.add_argument(
        "--models",
        type=Path,
        default=cache / "ringline-benchmarks",
        metavar="DIR",
        help="where checkpoints of random weights are made and kept (%(default)s)",
    )


def find_model(model: str, models: Path) -> Path:
    """The directory of a model: ``model`` itself, or that of the shape with this name, written if missing."""
    if Path(model).is_dir():
        return Path(model).resolve()
    if model not in SHAPES:
        raise SystemExit(f"{model} is neither a directory nor one of {', '.join(SHAPES)}")
    directory = (models / model).resolve()
    if not (directory / _COMPLETE).exists():
        print(f"making {directory}", flush=True)
        _write_checkpoint(SHAPES[model](), directory)
    return directory


def find_smollm2(given: str) -> Path | None:
    """The GGUF file ``given``, or that of the installed package; None if it is not installed."""
    if given not in PACKAGED_MODELS:
        return Path(given)
    try:
        return packaged_path(given)
    except CheckpointError as error:
        print(f"SmolLM2 is left out: {error}", flush=True)
        return None


def _write_checkpoint(config: PretrainedConfig, directory: Path) -> None:
    """Write random bfloat16 weights as safetensors, and a tokenizer."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM
    model.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    write_tokenizer(directory)


def write_tokenizer(directory: Path) -> None:
    """Write a small tokenizer to a checkpoint's directory."""
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=_train_tokenizer(), eos_token=_SPECIAL_TOKENS[0]).save_pretrained(directory)


def _train_tokenizer() -> Tokenizer:
    """A byte-level BPE trained on Python's standard library: its tokens are as long as those of real tokenizers."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=_SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([str(path) for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))], trainer)
    return tokenizer
