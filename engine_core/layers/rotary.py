"""Rotary position embedding (Su et al., 2021, https://arxiv.org/abs/2104.09864) and its context extensions.

Known types: ``default``; ``linear`` (position interpolation, https://arxiv.org/abs/2306.15595); ``llama3`` (Llama 3.1,
https://arxiv.org/abs/2407.21783); ``yarn`` (https://arxiv.org/abs/2309.00071); ``proportional`` (Gemma 4: pairs beyond
a share of the head are not rotated); ``longrope`` (https://arxiv.org/abs/2402.13753); ``dynamic`` (NTK), which changes
nothing up to a model's training length, and beyond it would make a token depend on the longest sequence of its batch:
it is treated as ``default``, limited to that length.

Of LongRoPE's two sets of factors, the one for long sequences is used for all sequences if an engine allows any beyond
the model's original length: a token's result must not depend on tokens that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine_core.attention.base import Angles
from engine_core.errors import CheckpointError, UnsupportedModelError

MOST_POSITIONS = 2**31 - 1
"""Limit for a sequence of any model."""
_LEAST, _MOST = 1e-12, 1e18
"""Bounds for numbers in ``rope_parameters``."""
ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """A checkpoint's ``rope_parameters``, checked. Fields after ``interleaved`` belong to the types that have them."""

    rope_type: str
    theta: float
    rotary_dim: int
    """Number of leading elements of a head that are rotated; 0 where queries are only scaled."""
    interleaved: bool = False
    """Whether elements 2i and 2i + 1 are a pair, instead of i and rotary_dim / 2 + i."""
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """Factor for cosines and sines."""
    rotated_pairs: int = 0
    short_factor: tuple[float, ...] = ()
    """LongRoPE's factors for the periods, like ``long_factor``."""
    long_factor: tuple[float, ...] = ()
    llama_4_scaling_beta: float | None = None
    """Queries at position p are multiplied by 1 + β · ln(1 + ⌊(p + o) / original length⌋)."""
    llama_4_scaling_offset: int = 0
    """The o of that."""
    mrope_section: tuple[int, ...] = ()
    """Pairs that are rotated by time, height and width; empty: all by a row's position. Whether the three take turns,
    instead of following each other: ``mrope_interleaved``. See ``with_sections``."""
    mrope_interleaved: bool = False

    @staticmethod
    def read(
        parameters: Mapping[str, Any], max_position_embeddings: int, head_dim: int, *, interleaved: bool = False
    ) -> RopeParameters:
        """Check a configuration as standardized by transformers (``rope_type``, ``rope_theta``, …).

        Raises ``UnsupportedModelError`` for an unknown type, ``CheckpointError`` for unusable values.
        """
        rope_type = str(parameters.get("rope_type", "default"))
        if rope_type not in ROPE_TYPES:
            raise UnsupportedModelError(
                f"rope type {rope_type!r} is not supported: expected one of {', '.join(ROPE_TYPES)}"
            )
        if rope_type != "yarn" and (beta := parameters.get("llama_4_scaling_beta")) is not None:
            raise UnsupportedModelError(
                f"rope_parameters: llama_4_scaling_beta={beta!r} is not supported with rope type "
                f"{rope_type!r}, only with 'yarn'"
            )
        rotated = _rotated(parameters, head_dim)
        rotary_dim = head_dim if rope_type == "proportional" else rotated
        plain = RopeParameters(rope_type, read_number(parameters, "rope_theta"), rotary_dim, interleaved)
        if rope_type in ("default", "dynamic"):
            return plain
        if rope_type == "proportional":
            return replace(plain, factor=read_number(parameters, "factor", 1.0), rotated_pairs=rotated // 2)
        if rope_type == "linear":
            return replace(plain, factor=read_number(parameters, "factor"))
        original = _original(parameters, max_position_embeddings)
        implied = None if rope_type == "llama3" else max_position_embeddings / original
        factor = read_number(parameters, "factor", implied)
        scaled = replace(plain, factor=factor, original_max_position_embeddings=original)
        readers = {"llama3": _read_llama3, "longrope": _read_longrope, "yarn": _read_yarn}
        return readers[rope_type](parameters, scaled)

    def with_sections(self, section: tuple[int, ...], *, interleaved: bool) -> RopeParameters:
        """The same, by three positions. Raises ``CheckpointError`` if the sections do not divide the pairs."""
        pairs = self.rotary_dim // 2
        if len(section) != 3 or min(section) < 0 or sum(section) != pairs:
            raise CheckpointError(
                f"rope_parameters: mrope_section={list(section)} is not usable: expected three numbers of pairs whose "
                f"sum is {pairs}, for time, height and width"
            )
        return replace(self, mrope_section=section, mrope_interleaved=interleaved)

    def longest_sequence(self, max_position_embeddings: int) -> int:
        """Most tokens of a sequence: ``linear`` and ``yarn`` extend the configuration's limit."""
        if self.rope_type == "linear":
            return int(min(max_position_embeddings * self.factor, MOST_POSITIONS))
        if self.rope_type == "yarn":
            extended = int(min(self.original_max_position_embeddings * self.factor, MOST_POSITIONS))
            return max(max_position_embeddings, extended)
        return max_position_embeddings

    def nbytes(self, max_positions: int) -> int:
        """Bytes of cosines, sines and scales for ``max_positions`` positions; computing them takes no more."""
        return 4 * max_positions * (self.rotary_dim + (self.llama_4_scaling_beta is not None))


def _rotated(parameters: Mapping[str, Any], head_dim: int) -> int:
    """Elements of a head in the rotated share."""
    share = read_number(parameters, "partial_rotary_factor", 1.0)
    rotated = int(head_dim * share)
    if not 2 <= rotated <= head_dim or rotated % 2:
        raise CheckpointError(
            f"rope_parameters: partial_rotary_factor={share:g} × head_dim={head_dim} is {rotated}: expected an "
            f"even number from 2 to {head_dim}"
        )
    return rotated


def _read_llama3(parameters: Mapping[str, Any], scaled: RopeParameters) -> RopeParameters:
    low, high = read_number(parameters, "low_freq_factor"), read_number(parameters, "high_freq_factor")
    if not low <= high:
        raise CheckpointError(
            f"rope_parameters: low_freq_factor={low} is not usable: expected at most high_freq_factor={high}"
        )
    return replace(scaled, low_freq_factor=low, high_freq_factor=high)


def _read_longrope(parameters: Mapping[str, Any], scaled: RopeParameters) -> RopeParameters:
    original, pairs = scaled.original_max_position_embeddings, scaled.rotary_dim // 2
    return replace(
        scaled,
        attention_factor=_longrope_attention_factor(parameters, scaled.factor, original),
        short_factor=_factors(parameters, "short_factor", pairs),
        long_factor=_factors(parameters, "long_factor", pairs),
    )


def _read_yarn(parameters: Mapping[str, Any], scaled: RopeParameters) -> RopeParameters:
    if scaled.theta <= 1:
        raise CheckpointError(
            f"rope_parameters: rope_theta={scaled.theta:g} is not usable: expected more than 1 with rope type 'yarn'"
        )
    beta = parameters.get("llama_4_scaling_beta")
    return replace(
        scaled,
        beta_fast=read_number(parameters, "beta_fast", 32.0),
        beta_slow=read_number(parameters, "beta_slow", 1.0),
        truncate=bool(parameters.get("truncate", True)),
        attention_factor=_yarn_attention_factor(parameters, scaled.factor),
        llama_4_scaling_beta=None if beta is None else read_number(parameters, "llama_4_scaling_beta"),
    )


class Rotary:
    """Turns positions into rotations, once per step for all layers."""

    def __init__(self, parameters: RopeParameters, max_positions: int, device: torch.device) -> None:
        """Compute the angles of ``max_positions`` positions."""
        positions = torch.arange(max_positions, dtype=torch.float32, device=device)
        angles = positions[:, None] * _inverse_frequencies(parameters, max_positions).to(device)
        self._cos = angles.cos().mul_(parameters.attention_factor)
        self._sin = angles.sin_().mul_(parameters.attention_factor)
        self._query_scales: torch.Tensor | None = None
        if (beta := parameters.llama_4_scaling_beta) is not None:
            counted = positions + parameters.llama_4_scaling_offset
            turns = torch.floor(counted / parameters.original_max_position_embeddings)
            self._query_scales = 1 + beta * torch.log1p(turns)[:, None]
        self._dimensions: torch.Tensor | None = None
        if parameters.mrope_section:
            self._dimensions = _dimensions(parameters).to(device)

    def angles(self, positions: torch.Tensor, rotary_positions: torch.Tensor | None = None) -> Angles:
        """The angles of ``positions`` [T] int64, or, where pairs rotate by one of three positions each, of
        ``rotary_positions`` [3, T] if given.
        """
        scales = None if self._query_scales is None else self._query_scales.index_select(0, positions)[:, None]
        if rotary_positions is None or self._dimensions is None:
            cos, sin = (table.index_select(0, positions) for table in (self._cos, self._sin))
        else:
            places = rotary_positions.index_select(0, self._dimensions).T  # [T, pairs]
            cos, sin = (table.gather(0, places) for table in (self._cos, self._sin))
        return Angles(cos[:, None], sin[:, None], scales)


def _dimensions(parameters: RopeParameters) -> torch.Tensor:
    """[pairs] int64: 0, 1 or 2 for pairs that are rotated by time, height or width."""
    section = torch.tensor(parameters.mrope_section)
    if not parameters.mrope_interleaved:
        return torch.arange(3).repeat_interleave(section)
    dimensions = torch.zeros(int(section.sum()), dtype=torch.int64)
    for dimension in (1, 2):
        dimensions[dimension : 3 * parameters.mrope_section[dimension] : 3] = dimension
    return dimensions


def _inverse_frequencies(parameters: RopeParameters, max_positions: int) -> torch.Tensor:
    """[rotary_dim / 2] float32, in transformers' order of operations: far positions amplify a wrong last bit to a wrong
    angle.
    """
    count = parameters.rotary_dim
    periods = parameters.theta ** (torch.arange(0, count, 2, dtype=torch.float32) / count)
    match parameters.rope_type:
        case "linear":
            return 1.0 / periods / parameters.factor
        case "llama3":
            return _llama3(1.0 / periods, parameters)
        case "longrope":
            is_long = max_positions > parameters.original_max_position_embeddings
            return 1.0 / (torch.tensor(parameters.long_factor if is_long else parameters.short_factor) * periods)
        case "proportional":
            frequencies = 1.0 / periods
            frequencies[parameters.rotated_pairs :] = 0.0
            return frequencies / parameters.factor
        case "yarn":
            return _yarn(periods, parameters)
    return 1.0 / periods


def _llama3(frequencies: torch.Tensor, parameters: RopeParameters) -> torch.Tensor:
    """Stretch long waves by the factor, keep short ones, and blend those between."""
    low, high = parameters.low_freq_factor, parameters.high_freq_factor
    turns = parameters.original_max_position_embeddings / (2 * math.pi / frequencies)
    kept = (turns >= low).float() if low == high else ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / parameters.factor + kept * frequencies


def _yarn(periods: torch.Tensor, parameters: RopeParameters) -> torch.Tensor:
    """Keep dimensions that turn often within the original length, and stretch those that turn rarely."""
    count = parameters.rotary_dim

    def dimension_of(turns: float) -> float:
        ratio = parameters.original_max_position_embeddings / (turns * 2 * math.pi)
        return count * math.log(ratio) / (2 * math.log(parameters.theta))

    first, last = dimension_of(parameters.beta_fast), dimension_of(parameters.beta_slow)
    if parameters.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, count - 1)
    if first == last:
        last += 0.001
    kept = 1 - ((torch.arange(count // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    return 1.0 / (parameters.factor * periods) * (1 - kept) + 1.0 / periods * kept


def yarn_scale(weight: float, factor: float) -> float:
    """YaRN's recommended factor for queries and keys in a context ``factor`` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """The one given; else by ``mscale`` and ``mscale_all_dim`` if both are set; else the paper's 0.1 ln(factor) + 1.

    ``attn_factor`` multiplies the latter two, as in YaRN's own code and in vLLM; transformers ignores it.
    """
    if parameters.get("attention_factor") is not None:
        return read_number(parameters, "attention_factor")
    return read_number(parameters, "attn_factor", 1.0) * _implied_attention_factor(parameters, factor)


def _implied_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        of_rotated, of_all = read_number(parameters, "mscale"), read_number(parameters, "mscale_all_dim")
        return yarn_scale(of_rotated, factor) / yarn_scale(of_all, factor)
    return yarn_scale(1.0, factor)


def _longrope_attention_factor(parameters: Mapping[str, Any], factor: float, original: int) -> float:
    """``attention_factor``, else √(1 + ln(factor) / ln(original length))."""
    if parameters.get("attention_factor") is not None:
        return read_number(parameters, "attention_factor")
    if factor <= 1:
        return 1.0
    if original == 1:
        raise CheckpointError(
            "rope_parameters: original_max_position_embeddings=1 is not usable without an attention_factor"
        )
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _factors(parameters: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    values = parameters.get(name)
    if not isinstance(values, list) or len(values) != count:
        given = f"has {len(values)} numbers" if isinstance(values, list) else f"is {values!r}"
        raise CheckpointError(f"rope_parameters: {name} {given}: expected {count} numbers, one per rotated pair")
    return tuple(read_number({name: value}, name) for value in values)


def _original(parameters: Mapping[str, Any], max_position_embeddings: int) -> int:
    """The length that a model was trained for. An explicit null is refused, as in transformers."""
    name = "original_max_position_embeddings"
    value = read_number({name: parameters.get(name, max_position_embeddings)}, name)
    if not value.is_integer() or not 1 <= value <= MOST_POSITIONS:
        raise CheckpointError(
            f"rope_parameters: original_max_position_embeddings={value:g} is not usable: expected a whole number from "
            f"1 to {MOST_POSITIONS}"
        )
    return int(value)


def read_number(parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A number for which angles stay finite; ``default`` if it is missing or null."""
    value = parameters.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST <= value <= _MOST:
        raise CheckpointError(
            f"rope_parameters: {name}={value!r} is not usable: expected a number from {_LEAST:g} to {_MOST:g}"
        )
    return float(value)
