"""Gated DeltaNet (https://arxiv.org/abs/2412.06464) in Qwen's form, and the configuration of models that have it in
some layers and attention in the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation
from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, RecurrentSpec, StateSpec
from engine_core.layers.linear import ColumnParallelLinear
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.states import Channels, RecurrenceTensors, RecurrentHeads
from engine_core.models.model_config import MOST_HEADS, ArchitectureConfig, common_fields, layer_types, positive
from engine_core.weights.features import Features

_LINEAR, _FULL = "linear_attention", "full_attention"
_MOST_TAPS = 16
_NORMALIZE_EPS = 1e-6
"""Of queries and keys; no field of a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetConfig(ArchitectureConfig):
    """Layers with a state, which do not attend, and layers that do, which keep none."""

    states: tuple[RecurrentSpec | None, ...]

    @property
    def state_specs(self) -> tuple[StateSpec | None, ...]:
        return self.states

    @property
    def state_fields(self) -> Mapping[str, str]:
        return {"num_heads": "linear_num_value_heads", "num_key_heads": "linear_num_key_heads"}

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec | None, ...]:
        spec = AttentionSpec(self.num_kv_heads, self.head_dim)
        return tuple(spec if state is None else None for state in self.states)


class GatedDeltaNet:
    """Queries, keys and values through a short convolution into a recurrence, whose output is normalized per head and
    gated.
    """

    def __init__(self, config: GatedDeltaNetConfig, index: int, prefix: str, parts: PartFactory) -> None:
        spec = config.states[index]
        assert spec is not None
        heads = parts.recurrent_heads(spec)
        self.in_proj_qkvz = self.make_qkvz(prefix, config.hidden_size, heads, parts)
        self.in_proj_ba = self.make_ba(prefix, config.hidden_size, heads, parts)
        convolved = heads.features("key", "key", "value")
        channels = Channels(spec.channels, tuple(_qkv_rows(heads)), convolved)
        self.conv1d = parts.short_convolution(f"{prefix}.conv1d", channels, spec.conv_width + 1, silu=True)
        self.recurrence = parts.recurrence(
            RecurrenceTensors(f"{prefix}.A_log", f"{prefix}.dt_bias"),
            heads,
            query_scale=spec.key_dim**-0.5,
            normalize_eps=_NORMALIZE_EPS,
        )
        self.norm = parts.gated_rms_norm(
            f"{prefix}.norm",
            spec.num_heads,
            Features(1, spec.value_dim),
            heads.own_heads,
            config.norm_eps,
            norm_before_gate=True,
            shared_weight=True,
        )
        attended = Features(spec.num_heads, spec.value_dim)
        self.out_proj = parts.linear(f"{prefix}.out_proj", attended, config.hidden_size)
        self._num_keys, self._num_heads = len(heads.own_key_heads), len(heads.own_heads)
        self._keys = self._num_keys * parts.backend.padded(spec.key_dim)
        self._updates = parts.backend.padded(self._num_heads)
        self._channels = convolved.padded(parts.backend)
        self._gather = heads.gather
        self._select_rows = parts.backend.select_rows

    def make_qkvz(
        self, prefix: str, hidden_size: int, heads: RecurrentHeads, parts: PartFactory
    ) -> ColumnParallelLinear:
        """The projection to this rank's queries, keys, values and gates, in that order."""
        queries, keys, values = _sizes(heads)
        outputs, first_gate = heads.features("key", "key", "value", "value"), queries + keys + values
        taken = [*_qkv_rows(heads), _moved(heads.own_values, first_gate)]
        names = f"{prefix}.in_proj_qkv", f"{prefix}.in_proj_z"
        return parts.rows_linear(names, hidden_size, outputs, taken, rows=(first_gate, values))

    def make_ba(self, prefix: str, hidden_size: int, heads: RecurrentHeads, parts: PartFactory) -> ColumnParallelLinear:
        """The projection to this rank's update and decay inputs, in that order, one per head each."""
        taken = [heads.own_heads, _moved(heads.own_heads, heads.num_heads)]
        names = f"{prefix}.in_proj_b", f"{prefix}.in_proj_a"
        outputs = heads.features("head", "head")
        return parts.rows_linear(names, hidden_size, outputs, taken, rows=(heads.num_heads, heads.num_heads))

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor) -> torch.Tensor:
        """[R, H] for the wanted rows of ``x`` [T, H], or [T, H] for all, plus the same rows of ``residual`` [T, H]."""
        qkvz, ba, rows = self.in_proj_qkvz(x), self.in_proj_ba(x), len(x)
        qkv, gate = qkvz[:, : self._channels], qkvz[:, self._channels :]
        update, decay = (ba[:, first : first + self._num_heads] for first in (0, self._updates))
        qkv = self.conv1d(qkv, context)
        query, key = (qkv[:, first : first + self._keys].view(rows, self._num_keys, -1) for first in (0, self._keys))
        value = qkv[:, 2 * self._keys :].view(rows, self._num_heads, -1)
        recalled = self.recurrence(query, key, value, decay, update, context).flatten(1)
        recalled, gate, residual = (self._select_rows(each, context.rows) for each in (recalled, gate, residual))
        return self.out_proj(self._gather(self.norm(recalled, gate)), residual)


def _sizes(heads: RecurrentHeads) -> tuple[int, int, int]:
    """The numbers of all queries, keys and values of a row."""
    keys = heads.num_key_heads * heads.key_dim
    return keys, keys, heads.num_heads * heads.value_dim


def _qkv_rows(heads: RecurrentHeads) -> list[range]:
    """The rank's queries, keys and values among all queries, then all keys, then all values."""
    queries, keys, _ = _sizes(heads)
    return [heads.own_keys, _moved(heads.own_keys, queries), _moved(heads.own_values, queries + keys)]


def _moved(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)


def read_gated_delta_net(config: PretrainedConfig, *, intermediate_size: str = "intermediate_size") -> dict[str, Any]:
    """The fields of ``GatedDeltaNetConfig`` but for a mixture; ``intermediate_size`` names a field.

    Raises ``CheckpointError``, ``UnsupportedModelError``.
    """
    fields = common_fields(config, intermediate_size=intermediate_size, partial_rotary=True)
    kinds = layer_types(config, fields["num_layers"])
    if unknown := sorted(set(kinds) - {_LINEAR, _FULL}):
        raise UnsupportedModelError(
            f"layer_types: {', '.join(unknown)} is not supported for {config.model_type}: expected {_LINEAR} or {_FULL}"
        )
    state = _read_state(config)
    if fields["activation"] != Activation.SILU and _LINEAR in kinds:
        raise UnsupportedModelError(
            f"hidden_act {config.hidden_act!r} is not supported: expected silu, as it follows convolutions, too"
        )
    ropes = tuple(rope if kind == _FULL else None for rope, kind in zip(fields["ropes"], kinds, strict=True))
    return fields | {
        "ropes": ropes,
        "states": tuple(state if kind == _LINEAR else None for kind in kinds),
        "qk_norm": True,
        "norm_offset": 1.0,  # checkpoints hold norm weights minus 1
        "qkv_bias": config.attention_bias,
        "o_bias": config.attention_bias,
    }


def _read_state(config: PretrainedConfig) -> RecurrentSpec:
    """Raises ``CheckpointError``."""
    num_keys, num_heads = (
        positive(config, name, MOST_HEADS) for name in ("linear_num_key_heads", "linear_num_value_heads")
    )
    if num_heads % num_keys:
        raise CheckpointError(
            f"linear_num_value_heads={num_heads} is not a multiple of linear_num_key_heads={num_keys}"
        )
    taps = positive(config, "linear_conv_kernel_dim", _MOST_TAPS)
    if taps < 2:
        raise CheckpointError(f"linear_conv_kernel_dim={taps} is not usable: expected 2 to {_MOST_TAPS}")
    widths = positive(config, "linear_key_head_dim"), positive(config, "linear_value_head_dim")
    return RecurrentSpec(num_keys, num_heads, *widths, taps - 1)
