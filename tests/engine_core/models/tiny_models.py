"""Tiny random checkpoints made with transformers: one case for each thing that a configuration can switch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""How transformers computes: plainly."""
_LEARNED_BUFFERS = ("e_score_correction_bias", "expert_bias", "layer_scalar")
SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1000.0}

CASES: dict[str, PretrainedConfig] = {
    "llama-gqa": LlamaConfig(**SIZES),
    "llama-mha-tied-biases": LlamaConfig(
        **(SIZES | {"num_key_value_heads": 4}), tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama3-rope": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama-linear-rope-head-dim": LlamaConfig(**SIZES, rope_parameters=LINEAR, head_dim=24),
    "mistral-mqa-head-dim": MistralConfig(
        **(SIZES | {"num_attention_heads": 6, "hidden_size": 96, "num_key_value_heads": 1}),
        head_dim=32,
        sliding_window=None,
    ),
    "mistral-wide-window": MistralConfig(**SIZES, sliding_window=512),
    "mistral-window": MistralConfig(**SIZES, sliding_window=24),
    "olmo2": Olmo2Config(**SIZES),
    "olmo2-tied-biases-padded": Olmo2Config(
        **(SIZES | {"hidden_size": 88, "intermediate_size": 101}), attention_bias=True, tie_word_embeddings=True
    ),
    "qwen2-tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-window-of-two-layers": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=37, max_window_layers=1),
    "qwen2-yarn": Qwen2Config(**SIZES, rope_parameters=YARN),
    "qwen3-tied-head-dim": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
    "qwen3-padded": Qwen3Config(
        **(SIZES | {"hidden_size": 70, "intermediate_size": 107}), head_dim=18, tie_word_embeddings=True
    ),
    "qwen3-mha-biases": Qwen3Config(**(SIZES | {"num_key_value_heads": 4}), head_dim=16, attention_bias=True),
}


def make_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A float32 model. Biases, norms and scales are random too, so that leaving one out shows."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **EAGER).float().eval()
    compute_token_by_token(model)
    limit_steps(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith(_LEARNED_BUFFERS):
                buffer += 0.2 * torch.randn_like(buffer)
    return model


def compute_token_by_token(model: PreTrainedModel) -> None:
    """Let the class of ``model`` compute the gated delta rule, if it has one, as it is defined, and as transformers
    decodes. Its other form, in chunks of 64 tokens, takes differences of summed logarithms, whose rounding moves
    logits by up to 1e-3 in float32.
    """
    module = sys.modules[type(model).__module__]
    if hasattr(module, "torch_chunk_gated_delta_rule"):
        module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule


def limit_steps(model: PreTrainedModel) -> None:
    """Let Nemotron-H limit steps as the code of its published checkpoints does. Transformers limits them by
    ``time_step_min``, with which they are initialized.
    """
    for module in model.modules():
        if type(module).__name__ == "NemotronHMamba2Mixer":
            module.time_step_limit = model.config.time_step_limit


def save_model(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """Save as transformers does; ``max_shard_size`` shards."""
    model.save_pretrained(directory, **options)
    return directory
