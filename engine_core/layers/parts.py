"""The parts that models are written from: each knows its role and its tensors in a checkpoint, and loads them.

Names and roles are vLLM's. With several ranks, every projection is split along its outputs, ``o_proj`` and
``down_proj`` too, so that each output stays one chain of additions whatever the number of ranks. A part has no weights
until ``load``; ``factory.PartFactory`` makes parts and remembers the order in which they load.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from engine_core.attention.base import Angles, AttentionBackend, AttentionMetadata, AttentionOptions
from engine_core.layers.weights import Weights
from engine_core.ops.base import HeadNorms, HeadsShape, LinearOp, NormOp, OpsBackend, RotaryOp
from engine_core.quantization.base import Features, LinearShape, QuantMethod, Unquantized


@dataclass(frozen=True, slots=True)
class StepWeights:
    """Weights as a step meets them: whole, or as experts of which each row chooses some."""

    count: int
    nbytes: float
    """Bytes as they are stored, without padding."""
    num_experts: int = 1
    top_k: int = 1
    """Experts of a row."""

    @property
    def per_row(self) -> float:
        """Weights that a row meets."""
        return self.count * self.top_k / self.num_experts

    def bytes_read(self, rows: float) -> float:
        """Bytes of what ``rows`` rows meet between them, on average, if rows choose evenly and by themselves."""
        return self.nbytes * (1 - math.pow(1 - self.top_k / self.num_experts, rows))


class Part(ABC):
    """A piece of a model with weights of its own."""

    outputs_per_row: int = 0
    """Numbers that it makes of a row, if it makes others than a layer is given."""

    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint that it takes."""

    @abstractmethod
    def load(self, weights: Weights) -> None:
        """Take its tensors from ``weights``."""

    @abstractmethod
    def weight_bytes(self, itemsize: int) -> int:
        """Bytes its weights will take, without padding; ``itemsize`` is that of the model's type."""

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        """Its weights as a step meets them; ``itemsize`` is that of the model's type."""
        return (StepWeights(self.num_weights, self.weight_bytes(itemsize)),)

    @property
    def num_weights(self) -> int:
        """Numbers that its tensors stand for."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes its weights take once they are loaded, packed and padded."""


class ColumnParallelLinear(Part):
    """y = x · Wᵀ + b."""

    layer: LinearOp

    def __init__(self, shape: LinearShape, backend: OpsBackend, quant_method: QuantMethod) -> None:
        self.shape = shape
        self.outputs_per_row = shape.outputs.count
        self._backend = backend
        self._quant_method = quant_method

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._quant_method.tensors(self.shape)

    def load(self, weights: Weights) -> None:
        self.layer = self._quant_method.load(self.shape, weights, self._backend)

    def weight_bytes(self, itemsize: int) -> int:
        return self._quant_method.weight_bytes(self.shape, itemsize)

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], times ``scale``, plus ``residual`` [M, N], which may be overwritten."""
        return self.layer(x, residual=residual, scale=scale)


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Projections of one input, their outputs side by side: ``gate_proj`` and ``up_proj``."""


class QKVParallelLinear(ColumnParallelLinear):
    """The projections of queries, keys and values, their heads side by side."""

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """[T, Hq + 2 · Hkv, D] of ``x`` [T, K]."""
        return self.layer(x).view(x.shape[0], self.shape.outputs.groups, -1)


class ParallelLMHead(ColumnParallelLinear):
    """The output projection, in float32."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, V] float32 of ``hidden`` [R, H]."""
        return self.layer(hidden, dtype=torch.float32)

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R] int64: ids of the greatest logits, the lowest of equals."""
        return self.layer.argmax(hidden)


class RowGate(Part):
    """Multiplies rows by the sigmoid of a projection to one logit, which is never quantized."""

    layer: LinearOp

    def __init__(self, name: str, inputs: Features, backend: OpsBackend) -> None:
        self._shape = LinearShape((name,), (1,), inputs, Features(1, 1, fixed=True), bias=False)
        self._backend = backend

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return Unquantized().tensors(self._shape)

    def load(self, weights: Weights) -> None:
        self.layer = Unquantized().load(self._shape, weights, self._backend)

    def weight_bytes(self, itemsize: int) -> int:
        return Unquantized().weight_bytes(self._shape, itemsize)

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: torch.Tensor, gated: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` plus ``gated`` times the sigmoid of each row's logit; all [T, H]."""
        return self._backend.add_gated(gated, self.layer(x, dtype=torch.float32), residual)


class VocabParallelEmbedding(Part):
    """Rows of a table, or of the output projection's weight where the two are tied, without a second copy."""

    def __init__(
        self,
        name: str,
        vocab_size: int,
        features: Features,
        backend: OpsBackend,
        dtype: torch.dtype,
        tied_to: ParallelLMHead | None = None,
        scale: float = 1.0,
    ) -> None:
        """A table is kept in the type in which it is stored, if that has 16 bits; its rows are of type ``dtype``."""
        self._dtype = dtype
        self._name = f"{name}.weight"
        self._shape = (vocab_size, features.count)
        self._features = features
        self._backend = backend
        self._tied_to = tied_to
        self._scale = scale
        self._table: torch.Tensor | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {} if self._tied_to is not None else {self._name: self._shape}

    def load(self, weights: Weights) -> None:
        if self._tied_to is None:
            table = weights.take_table(self._name)
            padded = self._features.pad(table, 1, self._backend)
            self._table = table.clone() if padded is table else padded

    def weight_bytes(self, itemsize: int) -> int:
        return sum(math.prod(size) for size in self.tensors().values()) * itemsize

    @property
    def nbytes(self) -> int:
        return 0 if self._table is None else self._table.nbytes

    def __call__(self, indices: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``indices`` [T] int64."""
        if self._table is not None:
            rows = torch.nn.functional.embedding(indices, self._table).to(self._dtype)
        else:
            assert self._tied_to is not None
            rows = self._tied_to.layer.weight_rows(indices)
        # The factor is rounded like the rows, as in the models that have one.
        return rows if self._scale == 1.0 else rows.mul_(torch.tensor(self._scale, dtype=rows.dtype))


class Norm(Part):
    """Normalization over the last dimension."""

    layer: NormOp

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, W] of ``x`` [T, W], whose rows may lie apart, plus ``residual``; or [T, G, W] of groups of W each."""
        return self.layer(x, residual=residual)

    def in_place(self, x: torch.Tensor) -> None:
        """Normalize the rows of ``x`` [T, W], which may lie apart, in place."""
        self.layer(x, in_place=True)

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes


class RMSNorm(Norm):
    """Divides by the root mean square (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(
        self,
        name: str | None,
        features: Features,
        eps: float,
        backend: OpsBackend,
        device: torch.device,
        offset: float = 0.0,
        tensor: str = "weight",
        scale: float | str = 1.0,
    ) -> None:
        """``offset`` is added to the weights; without a name, they are ones. ``scale``: a number, or a tensor [1]."""
        self._name = None if name is None else f"{name}.{tensor}"
        self._device = device
        self._features = features
        self._eps = eps
        self._backend = backend
        self._offset = offset
        self._scale = scale

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        if self._name is not None:
            shapes[self._name] = (self._features.count,)
        if isinstance(self._scale, str):
            shapes[self._scale] = (1,)
        return shapes

    def load(self, weights: Weights) -> None:
        if self._name is None:
            weight = torch.ones(self._features.count, device=self._device)
        else:
            weight = weights.take(self._name).float() + self._offset
        weight = padded_weight(weight, self._features, self._backend)
        scale = weights.take_float32(self._scale).item() if isinstance(self._scale, str) else self._scale
        self.layer = self._backend.norm(weight, None, self._eps, self._features.count, scale)

    def weight_bytes(self, itemsize: int) -> int:
        return self.num_weights * itemsize


class LayerNorm(Norm):
    """Subtracts the mean, divides by the deviation, and adds a bias (Ba et al., 2016, https://arxiv.org/abs/1607.06450)."""

    def __init__(
        self, name: str | None, features: Features, eps: float, backend: OpsBackend, device: torch.device
    ) -> None:
        """Without a name, weights are ones and biases zeros."""
        self._name = name
        self._device = device
        self._features = features
        self._eps = eps
        self._backend = backend

    def tensors(self) -> dict[str, tuple[int, ...]]:
        kinds = () if self._name is None else ("weight", "bias")
        return {f"{self._name}.{kind}": (self._features.count,) for kind in kinds}

    def load(self, weights: Weights) -> None:
        weight, bias = (padded_weight(value, self._features, self._backend) for value in self._values(weights))
        self.layer = self._backend.norm(weight, bias, self._eps, self._features.count)

    def _values(self, weights: Weights) -> Iterator[torch.Tensor]:
        """Weight and bias."""
        if self._name is None:
            yield torch.ones(self._features.count, device=self._device)
            yield torch.zeros(self._features.count, device=self._device)
        for name in self.tensors():
            yield weights.take(name).float()

    def weight_bytes(self, itemsize: int) -> int:
        return len(self.tensors()) * self._features.count * itemsize


def padded_weight(weight: torch.Tensor, features: Features, backend: OpsBackend) -> torch.Tensor:
    """A copy of ``weight`` [W], each group padded with zeros."""
    return features.pad(weight.clone(), 0, backend)


@dataclass(frozen=True, slots=True)
class HeadNormNames:
    """Tensors of the root mean square norms of each head."""

    query: str
    key: str | None
    """None where there are no keys."""
    eps: float
    offset: float = 0.0
    """Added to the weights."""
    of_values: bool = False
    """Whether values are normalized too, with weights of one."""


class RotaryEmbedding(Part):
    """Rotates queries and keys by position, after the normalization of heads where ``norms`` names its weights."""

    layer: RotaryOp

    def __init__(self, shape: HeadsShape, norms: HeadNormNames | None, backend: OpsBackend) -> None:
        self._shape = shape
        self._norms = norms
        self._backend = backend

    def tensors(self) -> dict[str, tuple[int, ...]]:
        names = () if self._norms is None else (self._norms.query, self._norms.key)
        return {f"{name}.weight": (self._shape.head_dim,) for name in names if name is not None}

    def load(self, weights: Weights) -> None:
        norms = None
        if self._norms is not None:
            query, *keys = [weights.take(name).float() + self._norms.offset for name in self.tensors()]
            ones = torch.ones_like(query)
            norms = HeadNorms(
                query, keys[0] if keys else ones, ones if self._norms.of_values else None, self._norms.eps
            )
        self.layer = self._backend.rotary(self._shape, norms)

    def weight_bytes(self, itemsize: int) -> int:
        return len(self.tensors()) * self._shape.head_dim * itemsize

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes


class AttentionSinks(Part):
    """A logit per head, in float32."""

    logits: torch.Tensor

    def __init__(self, name: str, num_heads: int) -> None:
        self._name = name
        self._num_heads = num_heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self._name: (self._num_heads,)}

    def load(self, weights: Weights) -> None:
        self.logits = weights.take(self._name).to(torch.float32, copy=True)

    def weight_bytes(self, itemsize: int) -> int:
        return self._num_heads * itemsize

    @property
    def nbytes(self) -> int:
        return self.logits.nbytes


class Attention:
    """Attention of one layer over its KV cache."""

    def __init__(
        self,
        rotary: RotaryEmbedding,
        options: AttentionOptions,
        sinks: AttentionSinks | None,
        backend: AttentionBackend,
    ) -> None:
        self._rotary = rotary
        self._options = options
        self._sinks = sinks
        self._backend = backend

    def __call__(
        self,
        heads: torch.Tensor,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """[T, Hq · D] of ``heads`` [T, Hq + 2 · Hkv, D], which may be overwritten; writes to ``kv_cache``.

        With queries alone, nothing is written: another layer has.
        """
        options = self._options if self._sinks is None else replace(self._options, sinks=self._sinks.logits)
        return self._backend.forward_heads(heads, self._rotary.layer, angles, kv_cache, metadata, options)
