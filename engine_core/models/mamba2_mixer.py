"""The block of Mamba-2 (https://arxiv.org/abs/2405.21060), and how its sizes are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation, read_activation
from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, RecurrentSpec, StateSpec
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.states import Channels, RecurrenceTensors
from engine_core.models.model_config import ArchitectureConfig, positive
from engine_core.weights.features import Features

LEGACY_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
"""Types of layers in releases of transformers before 5.13, with their later names."""
_MOST_TAPS = 256
NO_LIMITS = (0.0, math.inf)
"""Of the steps: they are positive already."""


@dataclass(frozen=True, slots=True)
class MambaShape:
    """The sizes and options of a mixer."""

    num_heads: int
    head_dim: int
    num_groups: int
    """Neighbouring heads of a group share B and C, and are normalized together."""
    state_size: int
    conv_taps: int
    bias: bool
    conv_bias: bool
    step_limits: tuple[float, float] = NO_LIMITS

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def spec(self) -> RecurrentSpec:
        """The state of a sequence."""
        return RecurrentSpec(self.num_groups, self.num_heads, self.state_size, self.head_dim, self.conv_taps - 1)


@dataclass(frozen=True, slots=True)
class MambaNames:
    """The names of a mixer's sizes and options in a configuration."""

    num_heads: str
    head_dim: str
    num_groups: str = "n_groups"
    state_size: str = "state_size"
    conv_taps: str = "conv_kernel"
    bias: str = "use_bias"
    conv_bias: str = "use_conv_bias"
    activation: str = "hidden_act"

    @property
    def of_states(self) -> dict[str, str]:
        """``ModelShape.state_fields``."""
        return {"num_heads": self.num_heads, "num_key_heads": self.num_groups}


def read_mamba(config: PretrainedConfig, names: MambaNames, step_limits: tuple[float, float]) -> MambaShape:
    """Raises ``CheckpointError``, and ``UnsupportedModelError`` for an activation other than SiLU."""
    heads, groups = positive(config, names.num_heads), positive(config, names.num_groups)
    if heads % groups:
        raise CheckpointError(f"{names.num_heads}={heads} is not a multiple of {names.num_groups}={groups}")
    activation = getattr(config, names.activation)
    if read_activation(names.activation, activation) is not Activation.SILU:
        raise UnsupportedModelError(f"{names.activation}={activation!r} is not supported with Mamba-2: expected silu")
    taps = positive(config, names.conv_taps, _MOST_TAPS)
    if taps < 2:
        raise CheckpointError(f"{names.conv_taps}={taps} is not usable: expected at least 2, the token and one before")
    return MambaShape(
        heads,
        positive(config, names.head_dim),
        groups,
        positive(config, names.state_size),
        taps,
        bool(getattr(config, names.bias)),
        bool(getattr(config, names.conv_bias)),
        step_limits,
    )


def check_inner_size(fields: Mapping[str, Any], names: MambaNames, expand: str) -> None:
    """Raise ``CheckpointError`` if the heads are not ``expand`` times as wide as hidden states, where all is given."""
    given = [fields.get(name) for name in (names.num_heads, names.head_dim, expand, "hidden_size")]
    sizes = [size for size in given if isinstance(size, int)]
    if len(sizes) < len(given):
        return
    heads, head_dim, factor, hidden = sizes
    if heads * head_dim != factor * hidden:
        raise CheckpointError(
            f"{names.num_heads}={heads} with {names.head_dim}={head_dim} is not usable: expected {factor * hidden} in "
            f"all, which is {expand}={factor} × hidden_size={hidden}"
        )


def read_step_limits(config: PretrainedConfig) -> tuple[float, float]:
    """``time_step_limit``: the least and the greatest step. Raises ``CheckpointError``."""
    value = config.time_step_limit
    if isinstance(value, list | tuple) and len(value) == 2 and all(_is_number(each) for each in value):
        least, greatest = value
        if least <= greatest:
            return float(least), float(greatest)
    raise CheckpointError(f"time_step_limit={value!r} is not usable: expected two numbers, the least first")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig(ArchitectureConfig):
    """Some layers have a mixer; those in ``attends`` have attention."""

    mamba: MambaShape | None
    """None: no layer has a mixer."""
    mamba_names: MambaNames
    has_mixer: tuple[bool, ...]
    attends: tuple[bool, ...]

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec | None, ...]:
        spec = AttentionSpec(self.num_kv_heads, self.head_dim)
        return tuple(spec if attends else None for attends in self.attends)

    @property
    def state_specs(self) -> tuple[StateSpec | None, ...]:
        spec = None if self.mamba is None else self.mamba.spec
        return tuple(spec if has_mixer else None for has_mixer in self.has_mixer)

    @property
    def state_fields(self) -> Mapping[str, str]:
        return self.mamba_names.of_states


class Mamba2Mixer:
    """One projection makes a gate, the inputs x, B and C of a short convolution, and steps; then the recurrence, whose
    values, keys and queries are x, B and C; a norm of each group of heads, gated before; and a projection.
    """

    def __init__(
        self,
        shape: MambaShape,
        hidden_size: int,
        prefix: str,
        parts: PartFactory,
        *,
        eps: float,
        residual_scale: float = 1.0,
    ) -> None:
        """``eps``: of the gated norm."""
        heads, groups, inner = parts.recurrent_heads(shape.spec), shape.num_groups, shape.inner_size
        values, keys, of_steps = heads.own_values, heads.own_keys, heads.own_heads
        own = (values, _after(inner, keys), _after(inner + groups * shape.state_size, keys))
        conv_channels = inner + 2 * groups * shape.state_size
        self.in_proj = parts.rows_linear(
            (f"{prefix}.in_proj",),
            hidden_size,
            heads.features("value", "value", "key", "key", "head"),
            [values, *(_after(inner, each) for each in own), _after(inner + conv_channels, of_steps)],
            rows=(inner + conv_channels + shape.num_heads,),
            bias=shape.bias,
        )
        channels = Channels(conv_channels, own, heads.features("value", "key", "key"))
        self.conv1d = parts.short_convolution(
            f"{prefix}.conv1d", channels, shape.conv_taps, bias=shape.conv_bias, silu=True
        )
        tensors = RecurrenceTensors(f"{prefix}.A_log", f"{prefix}.dt_bias", f"{prefix}.D")
        self.recurrence = parts.recurrence(tensors, heads, step_limits=shape.step_limits)
        # A group of heads that several ranks share is gathered before its norm: then all ranks have all groups.
        splits_groups = groups % parts.rank.tp_size != 0
        of_group = shape.num_heads // groups
        self.norm = parts.gated_rms_norm(
            f"{prefix}.norm",
            groups,
            Features(1, of_group * shape.head_dim, parts=(shape.head_dim,) * of_group),
            range(groups) if splits_groups else heads.own_key_heads,
            eps,
            norm_before_gate=False,
        )
        self.out_proj = parts.linear(
            f"{prefix}.out_proj", Features(shape.num_heads, shape.head_dim), hidden_size, bias=shape.bias
        )
        pad, self._own_heads, self._own_groups = parts.backend.padded, len(of_steps), len(heads.own_key_heads)
        self._values = self._own_heads * pad(shape.head_dim)
        self._keys = self._own_groups * pad(shape.state_size)
        self._gather, self._splits_groups = heads.gather, splits_groups
        self._residual_scale = residual_scale
        self._select_rows = parts.backend.select_rows

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[R, H] for the wanted rows of ``x`` [T, H], or [T, H] for all, plus the same rows of ``residual`` [T, H];
        writes to the layer's state.
        """
        projected, convolved = self.in_proj(x), self._values + 2 * self._keys
        gate, steps = projected[:, : self._values], projected[:, self._values + convolved :][:, : self._own_heads]
        made = self.conv1d(projected[:, self._values : self._values + convolved], context)
        value, key, query = torch.split(made, [self._values, self._keys, self._keys], dim=1)
        rows = len(x)
        y = self.recurrence(
            query.view(rows, self._own_groups, -1),
            key.view(rows, self._own_groups, -1),
            value.view(rows, self._own_heads, -1),
            steps,
            None,
            context,
        )
        y, gate = (self._select_rows(each, context.rows) for each in (y.flatten(1), gate))
        if self._splits_groups:
            normed = self.norm(self._gather(y), self._gather(gate))
        else:
            normed = self._gather(self.norm(y, gate))
        residual = None if residual is None else self._select_rows(residual, context.rows)
        return self.out_proj(normed, residual, self._residual_scale)


def _after(count: int, rows: range) -> range:
    """``rows`` of a part that follows ``count`` rows."""
    return range(count + rows.start, count + rows.stop)
