"""Rotations against transformers, type by type, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.rotary import ROPE_TYPES, RopeParameters, Rotary

CPU = torch.device("cpu")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 3.0},
    LLAMA3 | {"original_max_position_embeddings": 8192, "rope_theta": 5e5},
    LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 100},
    YARN | {"original_max_position_embeddings": 512},
    YARN,
    YARN | {"rope_theta": 1e6, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
    YARN | {"attention_factor": 0.7},
    YARN | {"mscale": 0.9, "mscale_all_dim": 0.5},
    YARN | {"factor": 1.0, "original_max_position_embeddings": 32768},
]


def read(parameters: dict[str, Any], max_position_embeddings: int = 2048, head_dim: int = 16) -> RopeParameters:
    config = LlamaConfig(max_position_embeddings=max_position_embeddings, rope_parameters=dict(parameters))
    return RopeParameters.read(config.rope_parameters, max_position_embeddings, head_dim)


@pytest.mark.parametrize("head_dim", [4, 24, 128])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_angles_equal_transformers(parameters: dict[str, Any], head_dim: int) -> None:
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, max_position_embeddings=2048, rope_parameters=dict(parameters)
    )
    positions = torch.tensor([0, 1, 77, 2047])
    reference = LlamaRotaryEmbedding(config)
    cos, sin, _ = Rotary(read(parameters, head_dim=head_dim), int(positions.max()) + 1, CPU).angles(positions)
    expected_cos, expected_sin = reference(torch.zeros(1), positions[None])
    assert torch.equal(torch.cat([cos, cos], -1)[:, 0], expected_cos[0])
    assert torch.equal(torch.cat([sin, sin], -1)[:, 0], expected_sin[0])


def test_attn_factor_multiplies_what_yarn_implies() -> None:
    """As in YaRN's own code; transformers has no such field."""
    given, implied = read(YARN | {"attn_factor": 1.5}), read(YARN)
    assert given.attention_factor == pytest.approx(1.5 * implied.attention_factor)
    assert read(YARN | {"attn_factor": 1.5, "attention_factor": 0.7}).attention_factor == 0.7


@pytest.mark.parametrize(
    ("parameters", "longest"),
    [
        ({"rope_type": "default"}, 2048),
        ({"rope_type": "dynamic", "factor": 4.0}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        (LLAMA3 | {"original_max_position_embeddings": 512}, 2048),
        (YARN | {"original_max_position_embeddings": 1024}, 4096),
        (YARN | {"original_max_position_embeddings": 2048}, 8192),
        (YARN | {"original_max_position_embeddings": 128}, 2048),
    ],
)
def test_longest_sequence(parameters: dict[str, Any], longest: int) -> None:
    assert read(parameters).longest_sequence(2048) == longest


def test_types_that_are_not_known_are_refused_by_name() -> None:
    assert set(ROPE_INIT_FUNCTIONS) - set(ROPE_TYPES) <= {"axial"}
    with pytest.raises(UnsupportedModelError, match=r"'axial'.*default, dynamic, linear, llama3, longrope"):
        RopeParameters.read({"rope_type": "axial", "rope_theta": 1e4}, 2048, 16)


@pytest.mark.parametrize(("factor", "head_dim"), [(0.0, 16), (1.5, 16), (0.1, 16), (0.3, 10)])
def test_a_share_of_the_head_that_cannot_be_rotated_is_named(factor: float, head_dim: int) -> None:
    with pytest.raises(CheckpointError, match=f"partial_rotary_factor={factor}"):
        RopeParameters.read({"rope_theta": 1e4, "partial_rotary_factor": factor}, 2048, head_dim)


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}


@pytest.mark.parametrize("length", [64, 65, 512])
@pytest.mark.parametrize("changes", [{}, {"attention_factor": 1.3}, {"factor": 16.0}])
def test_longrope_equals_transformers_on_both_sides_of_its_switch(length: int, changes: dict[str, Any]) -> None:
    config = Phi3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        original_max_position_embeddings=64,
        rope_parameters=LONGROPE | changes,
    )
    positions = torch.arange(length)
    expected_cos, expected_sin = Phi3RotaryEmbedding(config)(torch.zeros(1), positions[None])
    rope = RopeParameters.read(config.rope_parameters, 512, 8)
    cos, sin, _ = Rotary(rope, length, CPU).angles(positions)
    assert torch.equal(torch.cat([cos, cos], -1)[:, 0], expected_cos[0])
    assert torch.equal(torch.cat([sin, sin], -1)[:, 0], expected_sin[0])


def test_longrope_needs_a_factor_for_each_pair() -> None:
    with pytest.raises(CheckpointError, match="short_factor has 4 numbers: expected 8 numbers, one per"):
        RopeParameters.read(LONGROPE, 512, 16)
    with pytest.raises(CheckpointError, match="long_factor is None: expected 4"):
        RopeParameters.read(LONGROPE | {"long_factor": None}, 512, 8)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"rope_theta": -1.0}, "rope_theta=-1.0"),
        ({"rope_type": "linear", "factor": 0}, "factor=0"),
        ({"rope_type": "yarn", "factor": True}, "factor=True"),
        (
            LLAMA3 | {"high_freq_factor": 0.5},
            "low_freq_factor=1.0 is not usable: expected at most high_freq_factor=0.5",
        ),
    ],
)
def test_unusable_values_are_named(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        RopeParameters.read({"rope_theta": 1e4} | parameters, 2048, 16)
