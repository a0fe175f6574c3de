"""Families whose layers have attention over keys and values, and a dense feed-forward block."""

from __future__ import annotations

from typing import Any

from transformers import (
    Ernie4_5Config,
    Exaone4Config,
    Glm4Config,
    GlmConfig,
    InternLM3Config,
    IQuestCoderConfig,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen3Config,
    SeedOssConfig,
    SmolLM3Config,
)

from tests.engine_core.models.tiny_models import LLAMA3, SIZES, YARN

ODD = SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 101}
"""Three heads of 24 with one key head; sizes that are not multiples of 16."""
OPT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "ffn_dim": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "init_std": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
FULL, WINDOW = "full_attention", "sliding_attention"
THETA = {"rope_type": "default", "rope_theta": 500.0}
QUERY_SCALING = YARN | {"original_max_position_embeddings": 32, "factor": 16.0, "llama_4_scaling_beta": 0.1}


# Configurations write to the parameters of rotations that they are given: each gets a copy.


def longrope(pairs: int, original: int, **changes: Any) -> dict[str, Any]:
    """Fields of a configuration. From an original length of 1, the factors of long sequences are those of all."""
    short, long = [1.0 + 0.1 * pair for pair in range(pairs)], [1.0 + pair for pair in range(pairs)]
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": short, "long_factor": long}
    return {"original_max_position_embeddings": original, "rope_parameters": rope | changes}


SHAPES: dict[str, PretrainedConfig] = {
    "llama-gelu": LlamaConfig(**SIZES, hidden_act="gelu"),
    "llama-gelu-tanh-three-heads": LlamaConfig(
        **(SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72}),
        hidden_act="gelu_pytorch_tanh",
    ),
    "qwen3-window-of-two-layers": Qwen3Config(
        **SIZES, head_dim=16, use_sliding_window=True, sliding_window=37, max_window_layers=1
    ),
    "phi3-long-factors-partial": Phi3Config(
        **SIZES, **longrope(6, 1, factor=512.0, attention_factor=1.2, partial_rotary_factor=0.75)
    ),
    "phi3-short-factors-mqa-tied-padded": Phi3Config(**ODD, **longrope(12, 512, factor=16.0), tie_word_embeddings=True),
    "phi3-window": Phi3Config(**SIZES, sliding_window=24),
    "olmo3": Olmo3Config(
        **SIZES,
        layer_types=[WINDOW, FULL, WINDOW],
        sliding_window=24,
        rope_parameters={FULL: dict(YARN), WINDOW: dict(THETA)},
    ),
    "olmo3-mqa-tied-biases-padded": Olmo3Config(
        **(ODD | {"num_hidden_layers": 4}), sliding_window=17, attention_bias=True, tie_word_embeddings=True
    ),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layer_interval=2),
    "smollm3-windows-biases-padded": SmolLM3Config(
        **ODD,
        no_rope_layers=[0, 1, 0],
        use_sliding_window=True,
        sliding_window=21,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "ministral": MinistralConfig(**SIZES, head_dim=16, layer_types=[FULL, WINDOW, WINDOW], sliding_window=24),
    "ministral-mqa-tied-padded": MinistralConfig(**ODD, head_dim=18, sliding_window=33, tie_word_embeddings=True),
    "ministral3": Ministral3Config(**SIZES, head_dim=16, rope_parameters=dict(QUERY_SCALING)),
    "ministral3-window-mqa-tied-padded": Ministral3Config(
        **ODD, head_dim=24, rope_parameters=dict(QUERY_SCALING), sliding_window=40, tie_word_embeddings=True
    ),
    "glm": GlmConfig(**SIZES, head_dim=16),
    "glm-whole-heads-mqa-tied-padded": GlmConfig(
        **ODD,
        head_dim=24,
        attention_bias=False,
        rope_parameters=dict(THETA),
        partial_rotary_factor=1.0,
        tie_word_embeddings=True,
    ),
    "glm4": Glm4Config(**SIZES, head_dim=16),
    "glm4-mqa-tied-padded": Glm4Config(
        **ODD, head_dim=20, attention_bias=False, rope_parameters=dict(YARN), tie_word_embeddings=True
    ),
    "opt": OPTConfig(**OPT),
    "opt-norms-behind-projected-padded": OPTConfig(
        **(OPT | {"hidden_size": 75, "num_attention_heads": 3, "ffn_dim": 101}),
        do_layer_norm_before=False,
        word_embed_proj_dim=40,
    ),
    "opt-norms-behind": OPTConfig(**OPT, do_layer_norm_before=False),
    "opt-untied-no-final-norm": OPTConfig(**OPT, _remove_final_layer_norm=True, tie_word_embeddings=False),
    "opt-gelu-plain-norms-no-biases": OPTConfig(
        **OPT, activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False
    ),
    "ernie4_5": Ernie4_5Config(**SIZES, tie_word_embeddings=False),
    "ernie4_5-mqa-biases-padded": Ernie4_5Config(**ODD, head_dim=18, use_bias=True, rope_parameters=dict(YARN)),
    "exaone4": Exaone4Config(**(SIZES | {"num_hidden_layers": 4}), sliding_window=37),
    "exaone4-no-window-mqa-tied-padded": Exaone4Config(
        **ODD, sliding_window=None, layer_types=[FULL] * 3, rope_parameters=dict(LLAMA3), tie_word_embeddings=True
    ),
    "internlm3": InternLM3Config(**SIZES, head_dim=16),
    "internlm3-mqa-biases-padded": InternLM3Config(
        **ODD,
        head_dim=20,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={**THETA, "rope_type": "dynamic", "factor": 6.0},
    ),
    "iquestcoder": IQuestCoderConfig(**SIZES, head_dim=32, rope_parameters=dict(THETA)),
    "seed_oss": SeedOssConfig(**SIZES, head_dim=16),
    "seed_oss-mqa-biases-tied-padded": SeedOssConfig(
        **ODD, head_dim=18, attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
}
