"""Families whose layers have attention over keys and values, and a dense feed-forward block."""

from __future__ import annotations

from transformers import LlamaConfig, PretrainedConfig

from tests.engine_core.models.tiny_models import SIZES

SHAPES: dict[str, PretrainedConfig] = {
    "llama-gelu": LlamaConfig(**SIZES, hidden_act="gelu"),
    "llama-gelu-tanh-three-heads": LlamaConfig(
        **(SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72}),
        hidden_act="gelu_pytorch_tanh",
    ),
}
