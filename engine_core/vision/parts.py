"""Parts that only towers and projectors have: linear layers stored in other forms, and attention without a cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.ops.base import LinearOp
from engine_core.vision.transformers_tower import attention
from engine_core.weights.features import Features
from engine_core.weights.source import Weights


class StoredMatrix(Part):
    """A linear layer whose weight is stored in another form than [N, K]: a convolution's, or transposed."""

    op: LinearOp

    def __init__(
        self,
        weight: str,
        stored: tuple[int, ...],
        as_matrix: Callable[[torch.Tensor], torch.Tensor],
        inputs: Features,
        outputs: Features,
        parts: PartFactory,
        bias: str | None = None,
    ) -> None:
        """``weight``: the tensor's name, of shape ``stored``; ``as_matrix`` gives its [N, K]. ``bias``: the name of a
        tensor [N].
        """
        self.outputs_per_row = outputs.count
        self._weight = weight
        self._stored = stored
        self._as_matrix = as_matrix
        self._inputs = inputs
        self._outputs = outputs
        self._bias = bias
        self._backend = parts.backend
        parts.parts.append(self)

    @classmethod
    def convolution(
        cls, name: str, channels: int, side: int, outputs: int, parts: PartFactory, *, bias: bool = True
    ) -> StoredMatrix:
        """A convolution of patches that do not overlap, of patches with their channels first."""
        return cls(
            f"{name}.weight",
            (outputs, channels, side, side),
            lambda weight: weight.reshape(outputs, -1),
            Features(1, channels * side * side),
            Features(1, outputs),
            parts,
            f"{name}.bias" if bias else None,
        )

    @classmethod
    def transposed(cls, name: str, inputs: int, outputs: int, parts: PartFactory) -> StoredMatrix:
        """The product x · W with the tensor ``name`` [K, N]."""
        return cls(
            name, (inputs, outputs), lambda w: w.t().contiguous(), Features(1, inputs), Features(1, outputs), parts
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        bias = {} if self._bias is None else {self._bias: (self._outputs.count,)}
        return {self._weight: self._stored} | bias

    def load(self, weights: Weights) -> None:
        bias = None
        if self._bias is not None:
            bias = self._outputs.pad(weights.take(self._bias).clone(), 0, self._backend)
        matrix = self._as_matrix(weights.take(self._weight))
        padded = self._inputs.pad(self._outputs.pad(matrix, 0, self._backend), 1, self._backend)
        self.op = self._backend.linear(padded, bias)

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], whose rows are padded here; plus ``residual`` [M, N], which may be overwritten."""
        missing = self.op.in_features - x.shape[1]
        padded = torch.nn.functional.pad(x, (0, missing)) if missing else x
        return self.op(padded, residual=residual)


class StoredTensor(Part):
    """A tensor that is used as it is, but for padding of its last dimension."""

    values: torch.Tensor

    def __init__(self, name: str, shape: tuple[int, ...], parts: PartFactory) -> None:
        self._name = name
        self._shape = shape
        self._backend = parts.backend
        parts.parts.append(self)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self._name: self._shape}

    def load(self, weights: Weights) -> None:
        padded = Features(1, self._shape[-1]).padded(self._backend)
        self.values = torch.nn.functional.pad(weights.take(self._name), (0, padded - self._shape[-1])).clone()

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


class Bounds(Part):
    """Limits of a layer's inputs and outputs, learned with it: four tensors of one number each."""

    def __init__(self, name: str, parts: PartFactory) -> None:
        self._names = tuple(f"{name}.{side}_{end}" for side in ("input", "output") for end in ("min", "max"))
        self._values: list[float] = []
        parts.parts.append(self)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self._names, ())

    def load(self, weights: Weights) -> None:
        self._values = [weights.take(name).item() for name in self._names]

    @property
    def nbytes(self) -> int:
        return 0

    def of_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` within the limits."""
        return x.clamp(*self._values[:2])

    def of_outputs(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` within the limits."""
        return x.clamp(*self._values[2:])


class ClippedLinear:
    """A linear layer without bias; if it is clipped, inputs and outputs are kept within learned limits."""

    def __init__(self, name: str, inputs: Features, outputs: Features, parts: PartFactory, *, is_clipped: bool) -> None:
        """``name``: the module's, whose weight is that of ``linear`` inside."""
        self._linear = parts.linear(f"{name}.linear", inputs, outputs)
        self._bounds = Bounds(name, parts) if is_clipped else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, N] of ``x`` [M, K]."""
        if (bounds := self._bounds) is None:
            return self._linear(x)
        return bounds.of_outputs(self._linear(bounds.of_inputs(x)))


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """[T, Hq · D]: every row of ``query`` [T, Hq, D] attends to all of ``key`` and ``value`` [T, Hkv, D]."""
    queries, keys, values = (x[None].transpose(1, 2) for x in (query, key, value))
    return attention(queries, keys, values, scale=scale)[0].transpose(0, 1).flatten(1)
