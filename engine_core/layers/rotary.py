"""Rotary position embedding (Su et al., 2021, https://arxiv.org/abs/2104.09864) and its context extensions.

Known types: ``default``; ``linear`` (position interpolation, https://arxiv.org/abs/2306.15595); ``llama3`` (Llama 3.1,
https://arxiv.org/abs/2407.21783); ``yarn`` (https://arxiv.org/abs/2309.00071); ``dynamic`` (NTK), which changes nothing
up to the length a model was trained for and beyond it would make a token depend on the longest sequence of its
batch: it is taken as ``default``, limited to that length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine_core.errors import CheckpointError, UnsupportedModelError

ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """A checkpoint's ``rope_parameters``, checked. Fields after ``theta`` belong to the types that have them."""

    rope_type: str
    theta: float
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """Factor of cosines and sines."""

    @staticmethod
    def read(parameters: Mapping[str, Any], max_position_embeddings: int) -> RopeParameters:
        """Check what a configuration says, as transformers standardizes it (``rope_type``, ``rope_theta``, …).

        Raises ``UnsupportedModelError`` for a type that is not known, ``CheckpointError`` for unusable values.
        """
        rope_type = str(parameters.get("rope_type", "default"))
        if rope_type not in ROPE_TYPES:
            raise UnsupportedModelError(f"rope type {rope_type!r} is not supported; known are {', '.join(ROPE_TYPES)}")
        if parameters.get("partial_rotary_factor", 1.0) != 1.0:
            factor = parameters["partial_rotary_factor"]
            raise UnsupportedModelError(f"partial_rotary_factor={factor!r} is not supported: heads are rotated whole")
        theta = _number(parameters, "rope_theta")
        if rope_type in ("default", "dynamic"):
            return RopeParameters(rope_type, theta)
        factor = _number(parameters, "factor", max_position_embeddings / _original(parameters, max_position_embeddings))
        if rope_type == "linear":
            return RopeParameters(rope_type, theta, factor)
        original = _original(parameters, max_position_embeddings)
        if rope_type == "llama3":
            low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
            if not low < high:
                raise CheckpointError(f"rope_parameters: low_freq_factor {low} must be below high_freq_factor {high}")
            return RopeParameters(rope_type, theta, factor, original, low_freq_factor=low, high_freq_factor=high)
        return RopeParameters(
            rope_type,
            theta,
            factor,
            original,
            beta_fast=_number(parameters, "beta_fast", 32.0),
            beta_slow=_number(parameters, "beta_slow", 1.0),
            truncate=bool(parameters.get("truncate", True)),
            attention_factor=_yarn_attention_factor(parameters, factor),
        )

    def longest_sequence(self, max_position_embeddings: int) -> int:
        """Tokens a sequence may have: ``linear`` and ``yarn`` extend what the configuration allows."""
        if self.rope_type == "linear":
            return int(max_position_embeddings * self.factor)
        if self.rope_type == "yarn":
            return max(max_position_embeddings, int(self.original_max_position_embeddings * self.factor))
        return max_position_embeddings


class Rotary:
    """Turns positions into rotations, once per step for all layers."""

    def __init__(self, parameters: RopeParameters, head_dim: int, max_positions: int, device: torch.device) -> None:
        """Compute the angles of ``max_positions`` positions; ``head_dim`` is even."""
        positions = torch.arange(max_positions, dtype=torch.float32, device=device)
        angles = positions[:, None] * _inverse_frequencies(parameters, head_dim).to(device)
        self._cos = angles.cos().mul_(parameters.attention_factor)
        self._sin = angles.sin_().mul_(parameters.attention_factor)

    @staticmethod
    def nbytes(head_dim: int, max_positions: int) -> int:
        """Bytes of the cosines and sines; computing them takes no more."""
        return 4 * max_positions * head_dim

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, each [T, 1, D / 2] float32, of ``positions`` [T] int64."""
        return self._cos.index_select(0, positions)[:, None], self._sin.index_select(0, positions)[:, None]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[T, heads, D] float32: ``x`` with each pair (i, i + D / 2) of a head rotated by its angle."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _inverse_frequencies(parameters: RopeParameters, head_dim: int) -> torch.Tensor:
    """[D / 2] float32, in transformers' order of operations: at far positions, a wrong last bit is a wrong angle."""
    periods = parameters.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match parameters.rope_type:
        case "linear":
            return 1.0 / periods / parameters.factor
        case "llama3":
            return _llama3(1.0 / periods, parameters)
        case "yarn":
            return _yarn(periods, parameters, head_dim)
    return 1.0 / periods


def _llama3(frequencies: torch.Tensor, parameters: RopeParameters) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    low, high = parameters.low_freq_factor, parameters.high_freq_factor
    turns = parameters.original_max_position_embeddings / (2 * math.pi / frequencies)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / parameters.factor + kept * frequencies


def _yarn(periods: torch.Tensor, parameters: RopeParameters, head_dim: int) -> torch.Tensor:
    """Dimensions that turn often in the original length are kept, those that turn rarely stretched."""

    def dimension_of(turns: float) -> float:
        ratio = parameters.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(parameters.theta))

    first, last = dimension_of(parameters.beta_fast), dimension_of(parameters.beta_slow)
    if parameters.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    return 1.0 / (parameters.factor * periods) * (1 - kept) + 1.0 / periods * kept


def _yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """As given; else by ``mscale`` and ``mscale_all_dim`` where both are set; else the paper's 0.1 ln(factor) + 1."""
    if parameters.get("attention_factor") is not None:
        return _number(parameters, "attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return scale(_number(parameters, "mscale")) / scale(_number(parameters, "mscale_all_dim"))
    return scale(1.0)


def _original(parameters: Mapping[str, Any], max_position_embeddings: int) -> int:
    return int(_number(parameters, "original_max_position_embeddings", max_position_embeddings))


def _number(parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive finite number; ``default`` where there is none or null."""
    value = parameters.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"rope_parameters: {name}={value!r} is not usable: expected a positive number")
    return float(value)
