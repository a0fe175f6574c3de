"""The parts of layers that keep a state per sequence: the short convolution, the linear recurrence, the gated norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.forward_context import LayerContext
from engine_core.layers.part import Part
from engine_core.layers.shares import Gather
from engine_core.ops.base import OpsBackend
from engine_core.ops.states import RecurrenceParameters
from engine_core.weights.features import Features, rows_of
from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a convolution that this rank has."""

    count: int
    """Of all ranks."""
    taken: tuple[range, ...]
    """This rank's, in the order of its inputs."""
    features: Features
    """The same, with their padding."""


class ShortConvolution(Part):
    """A causal convolution of each channel over a few tokens, whose last inputs are the layer's state."""

    def __init__(
        self, name: str, channels: Channels, taps: int, backend: OpsBackend, *, bias: bool = False, silu: bool = False
    ) -> None:
        """``silu``: whether SiLU follows."""
        self._channels = channels
        self._shape = (channels.count, 1, taps)
        self._name = name
        self._has_bias = bias
        self._silu = silu
        self._backend = backend
        self._ops = backend.state_ops()
        self._weight = torch.empty(0)
        self._bias: torch.Tensor | None = None
        self.outputs_per_row = channels.features.count

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {f"{self._name}.weight": self._shape}
        return shapes | {f"{self._name}.bias": self._shape[:1]} if self._has_bias else shapes

    def load(self, weights: Weights) -> None:
        self._weight = self._take(weights, "weight").t().contiguous()
        self._bias = self._take(weights, "bias").flatten() if self._has_bias else None

    def _take(self, weights: Weights, kind: str) -> torch.Tensor:
        """The rows [C, …] of this rank of a tensor, in float32 and padded."""
        channels = self._channels
        rows = rows_of((f"{self._name}.{kind}",), (channels.count,), channels.taken)
        taken = weights.take(*rows).float().view(channels.features.count, -1)
        return channels.features.pad(taken.clone(), 0, self._backend)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        context: LayerContext,
        gate: torch.Tensor | None = None,
        output_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[T, C] of ``x`` [T, C]: as ``StateOps.short_convolution``; writes to the layer's state."""
        assert context.state is not None
        assert context.state_metadata is not None
        return self._ops.short_convolution(
            x,
            self._weight,
            self._bias,
            context.state,
            context.state_metadata,
            silu=self._silu,
            gate=gate,
            output_gate=output_gate,
        )


@dataclass(frozen=True, slots=True)
class RecurrenceTensors:
    """Tensors of a recurrence, one number per head each."""

    rates: str
    """A_log."""
    biases: str
    """dt_bias."""
    skips: str | None = None
    """D."""


class Recurrence(Part):
    """The linear recurrence of this rank's heads: the gated delta rule, or Mamba-2's scan."""

    def __init__(
        self,
        tensors: RecurrenceTensors,
        num_heads: int,
        own: range,
        backend: OpsBackend,
        *,
        query_scale: float = 1.0,
        normalize_eps: float | None = None,
        step_limits: tuple[float, float] = (0.0, float("inf")),
    ) -> None:
        """``own``: this rank's heads, of ``num_heads``. Options as in ``RecurrenceParameters``."""
        self._tensors = tensors
        self._num_heads = num_heads
        self._own = own
        self._ops = backend.state_ops()
        self._query_scale = query_scale
        self._normalize_eps = normalize_eps
        self._step_limits = step_limits
        self._parameters: RecurrenceParameters | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        names = (self._tensors.rates, self._tensors.biases, self._tensors.skips)
        return dict.fromkeys((name for name in names if name is not None), (self._num_heads,))

    def load(self, weights: Weights) -> None:
        def own(name: str) -> torch.Tensor:
            return weights.take_float32(name)[self._own.start : self._own.stop].clone()

        skips = self._tensors.skips
        self._parameters = RecurrenceParameters(
            own(self._tensors.rates).exp().neg(),
            own(self._tensors.biases),
            None if skips is None else own(skips),
            self._query_scale,
            self._normalize_eps,
            self._step_limits,
        )

    @property
    def nbytes(self) -> int:
        return 4 * len(self._own) * len(self.tensors())

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        update: torch.Tensor | None,
        context: LayerContext,
    ) -> torch.Tensor:
        """[T, H, V]: as ``StateOps.recurrence``; writes to the layer's state."""
        assert self._parameters is not None
        assert context.state is not None
        assert context.state_metadata is not None
        return self._ops.recurrence(
            query, key, value, decay, update, self._parameters, context.state, context.state_metadata
        )


class GatedRMSNorm(Part):
    """RMS norm of groups of a row, combined with the SiLU of a gate."""

    def __init__(
        self,
        name: str,
        groups: int,
        features: Features,
        own: range,
        eps: float,
        backend: OpsBackend,
        *,
        norm_before_gate: bool,
        shared_weight: bool = False,
    ) -> None:
        """``groups`` of ``features`` each, of all ranks; this rank normalizes ``own``. ``shared_weight``: whether all
        groups have the same weights.
        """
        self._name = name
        self._groups = groups
        self._features = features
        self._own = own
        self._eps = eps
        self._backend = backend
        self._ops = backend.state_ops()
        self._norm_before_gate = norm_before_gate
        self._shared_weight = shared_weight
        self._weight = torch.empty(0)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {f"{self._name}.weight": ((1 if self._shared_weight else self._groups) * self._features.count,)}

    def load(self, weights: Weights) -> None:
        rows = weights.take(f"{self._name}.weight").float().view(-1, self._features.count)
        rows = rows if self._shared_weight else rows[self._own.start : self._own.stop]
        self._weight = self._features.pad(rows.clone(), 1, self._backend)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """[T, N · D] of ``x`` and ``gate`` [T, N · D], N groups, whose rows may be strided."""
        shape = (len(x), len(self._own), -1)
        y = self._ops.gated_norm(
            x.view(shape),
            gate.view(shape),
            self._weight,
            self._eps,
            self._features.count,
            norm_before_gate=self._norm_before_gate,
        )
        return y.flatten(1)


@dataclass(frozen=True, slots=True)
class RecurrentHeads:
    """The heads of a recurrent layer, and those of this rank."""

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    own_key_heads: range
    own_heads: range
    gather: Gather
    """[T, all value heads · V] from this rank's."""

    @property
    def own_keys(self) -> range:
        """The rows of this rank in a projection to all keys, or to all queries."""
        return range(self.own_key_heads.start * self.key_dim, self.own_key_heads.stop * self.key_dim)

    @property
    def own_values(self) -> range:
        """The rows of this rank in a projection to all values."""
        return range(self.own_heads.start * self.value_dim, self.own_heads.stop * self.value_dim)

    def features(self, *kinds: str) -> Features:
        """Outputs of this rank's heads side by side, each padded: ``key``, ``value`` or ``head`` (one number each)."""
        of_kind = {
            "key": (self.key_dim,) * len(self.own_key_heads),
            "value": (self.value_dim,) * len(self.own_heads),
            "head": (len(self.own_heads),),
        }
        sizes = tuple(size for kind in kinds for size in of_kind[kind])
        return Features(1, sum(sizes), parts=sizes)
