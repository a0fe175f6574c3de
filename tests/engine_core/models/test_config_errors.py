"""What configurations of families ask for in vain is refused in a line that names the field and its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.model_loader.checkpoint import Checkpoint
from tests.engine_core.models.driver import open_at

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "dtype": "bfloat16",
    "eos_token_id": 7,
    "pad_token_id": None,
}
FULL, WINDOW = "full_attention", "sliding_attention"
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}


def named(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return SIZES | {"architectures": [architecture], "model_type": model_type} | fields


PHI3 = named("Phi3ForCausalLM", "phi3", original_max_position_embeddings=64)
OLMO3 = named("Olmo3ForCausalLM", "olmo3", sliding_window=8)
SMOLLM3 = named("SmolLM3ForCausalLM", "smollm3")
MINISTRAL = named("MinistralForCausalLM", "ministral", sliding_window=8)
MINISTRAL3 = named("Ministral3ForCausalLM", "ministral3", head_dim=8)
GLM4 = named("Glm4ForCausalLM", "glm4", head_dim=8)
OPT = named("OPTForCausalLM", "opt", ffn_dim=48)


def opened(directory: Path, config: dict[str, Any], **options: Any) -> Checkpoint:
    (directory / "config.json").write_text(json.dumps(config))
    return open_at(directory, **options)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PHI3 | {"sliding_window": 0}, "sliding_window=0 is not usable: expected a positive whole number"),
        (PHI3 | {"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor field must have length 4, got 1"),
        (PHI3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, r"one of \['longrope'\], got linear"),
        (
            PHI3 | {"partial_rotary_factor": 0.4},
            "partial_rotary_factor=0.4 of heads of 8 is 3: expected an even",
        ),
        (
            PHI3 | {"sliding_window": 8, "layer_types": [FULL, WINDOW]},
            "layer_types names full_attention: with sliding_window=8, phi3 has only sliding_attention",
        ),
        (OLMO3 | {"sliding_window": None}, "layer_types names sliding_attention, .* set sliding_window to a number"),
        (OLMO3 | {"sliding_window": -1}, "sliding_window=-1 is not usable"),
        (
            MINISTRAL | {"layer_types": [FULL, "chunked_attention"]},
            "layer_types names chunked_attention; known are",
        ),
        (
            OLMO3 | {"rope_parameters": YARN},
            "rope_parameters has factor, .*: expected full_attention and sliding_att",
        ),
        (OLMO3 | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling has no rope_type"),
        (
            OLMO3 | {"rope_parameters": {WINDOW: {"rope_type": "default", "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor=0.5 is not supported: olmo3 rotates heads whole",
        ),
        (SMOLLM3 | {"no_rope_layers": [1]}, r"no_rope_layers=\[1\] is not usable: expected a 0 or 1 for each of 2 lay"),
        (SMOLLM3 | {"no_rope_layers": [1, 0, 1]}, r"no_rope_layers=\[1, 0, 1\] is not usable"),
        (SMOLLM3 | {"no_rope_layers": [1, 2]}, r"no_rope_layers=\[1, 2\] is not usable"),
        (SMOLLM3 | {"no_rope_layers": "10"}, "no_rope_layers"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval=0 is not usable: expected a positive whole"),
        (SMOLLM3 | {"use_sliding_window": True, "sliding_window": 0, "no_rope_layers": [1, 0]}, "sliding_window=0 is"),
        (SMOLLM3 | {"sliding_window": 8, "layer_types": [WINDOW, FULL]}, "set use_sliding_window to true"),
        (
            SMOLLM3 | {"rope_scaling": YARN | {"llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta=0.1 is not supported: smollm3 does not scale queries by position",
        ),
        (MINISTRAL | {"sliding_window": 0}, "sliding_window=0 is not usable"),
        (MINISTRAL | {"sliding_window": None, "layer_types": [FULL, WINDOW]}, "set sliding_window to a number of tok"),
        (
            MINISTRAL3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta=0.1 is known with rope type 'yarn', not with 'default'",
        ),
        (MINISTRAL3 | {"rope_parameters": YARN | {"llama_4_scaling_beta": "x"}}, "llama_4_scaling_beta='x' is not usa"),
        (
            MINISTRAL3 | {"layer_types": [FULL, WINDOW]},
            "layer_types names sliding_attention: with sliding_window=None, ministral3 has only full_attention",
        ),
        (GLM4 | {"partial_rotary_factor": 0.4}, "partial_rotary_factor=0.4 of heads of 8 is 3: expected an even numb"),
        (GLM4 | {"hidden_act": "mish"}, "hidden_act 'mish' is not supported; known are gelu"),
        (OPT | {"activation_function": "tanh"}, "activation_function 'tanh' is not supported; known are gelu"),
        (OPT | {"num_attention_heads": 5}, "hidden_size=32 is not a multiple of num_attention_heads=5"),
        (OPT | {"ffn_dim": 0}, "ffn_dim=0 is not usable"),
        (OPT | {"word_embed_proj_dim": 0}, "word_embed_proj_dim=0 is not usable"),
        (OPT | {"num_hidden_layers": 5000}, "num_hidden_layers=5000 is not usable: expected at most 4096"),
        (OPT | {"enable_bias": "no"}, "enable_bias"),
    ],
)
def test_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message) as caught:
        opened(tmp_path, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (PHI3 | {"rope_scaling": LONGROPE}, 256),
        (OLMO3 | {"rope_scaling": YARN}, 256),
        (OLMO3 | {"rope_scaling": YARN, "layer_types": [FULL, FULL]}, 400),
        (SMOLLM3 | {"rope_scaling": YARN}, 400),
        (SMOLLM3 | {"no_rope_layers": [0, 0]}, 256),
        (MINISTRAL3 | {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}}, 400),
        (OPT, 256),
    ],
)
def test_the_longest_sequence(config: dict[str, Any], longest: int, tmp_path: Path) -> None:
    assert opened(tmp_path, config).spec.max_model_len == longest
    with pytest.raises(ConfigError, match=rf"max_model_len={longest + 1} .*at most {longest},"):
        opened(tmp_path, config, max_model_len=longest + 1)
