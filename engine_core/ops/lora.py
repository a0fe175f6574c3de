"""What adapters add to the outputs of layers (LoRA; Hu et al., 2021, https://arxiv.org/abs/2106.09685).

To a row of a layer's outputs, its adapter adds scales · (x · Aᵀ) · Bᵀ. A row's chain of additions depends on its own
adapter alone, whichever rows are beside it; rows without an adapter stay as they are.

Symbols in shapes: M rows, K inputs and N outputs of a layer, padded; R ranks, G adapters of a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True, eq=False)
class LoRAOutputs:
    """What some of an adapter's ranks add to some of a layer's outputs."""

    ranks: range
    """Rows of ``LoRAWeights.a``."""
    columns: torch.Tensor
    """[n] int64, ascending: the outputs."""
    b: torch.Tensor
    """[n, r]; of grouped layers [G, n, r], or [1, n, r], the same for all groups."""


@dataclass(frozen=True, slots=True, eq=False)
class LoRAWeights:
    """An adapter's weights for a layer, which may be several projections side by side, each with ranks of its own."""

    a: torch.Tensor
    """[R, K]; of grouped layers [G, R, K], or [1, R, K], the same for all groups."""
    scales: torch.Tensor
    """[R] float32: factors of x · Aᵀ; of experts [G, R]."""
    outputs: tuple[LoRAOutputs, ...]
    """No output is in two of them."""
    experts: torch.Tensor | None = None
    """[E] int32: the group of each expert, or −1: nothing is added to it. None: the layer is none of experts."""


class PackedAdapter(Protocol):
    """An adapter's weights for all layers of a model, in the layout of the kernels. Nothing writes to it."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class RowsByAdapter:
    """Rows that have adapters, grouped by adapter."""

    starts: npt.NDArray[np.int32]
    """[G + 1]: where the rows of each adapter begin; an adapter may have none."""
    rows: npt.NDArray[np.int32]
    """The rows of the adapters, each adapter's ascending."""

    @classmethod
    def of(cls, places: npt.NDArray[np.intp], count: int) -> RowsByAdapter:
        """Group rows by their adapters' ``places`` [M] among ``count``; −1: the row has none."""
        order = np.argsort(places, kind="stable").astype(np.int32)
        starts = np.searchsorted(places[order], np.arange(count + 1)).astype(np.int32)
        return cls(starts - starts[0], order[starts[0] :])


@dataclass(frozen=True, slots=True, eq=False)
class StepAdapters:
    """The adapters of a step, and its rows that have them."""

    adapters: tuple[PackedAdapter, ...]
    """[G]"""
    num_rows: int
    of_all: RowsByAdapter
    """Rows of the step."""
    of_wanted: RowsByAdapter
    """Rows among those whose results are needed, which alone are computed behind the last layer's attention."""

    def of(self, rows: int) -> RowsByAdapter:
        """Those of a computation of ``rows`` rows: all, or the wanted ones."""
        return self.of_all if rows == self.num_rows else self.of_wanted


class LoRAOp(ABC):
    """Adds to the outputs of one layer."""

    def __init__(self, layer: int) -> None:
        """``layer``: its number among all of the model's."""
        self.layer = layer

    @abstractmethod
    def __call__(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        """Add to ``y`` [M, N], the outputs for ``x`` [M, K], what the rows' adapters add, times ``scale``.

        Of grouped layers, ``x`` is [M, G, K] and ``y`` [M, G, N]. Rows and groups of both may be strided; ``y`` is of
        the type of ``x``, or float32. Outside of a step nothing is added.
        """


class ExpertsLoRA:
    """What adapters add to the products of a layer's experts, whose ``ExpertsOp`` calls it."""

    def __init__(self, layer: int) -> None:
        """``layer``: the number of gates, if any, and ups; that of downs follows it."""
        self.layer = layer


class LoRAOps(ABC):
    """The ops of one model's layers, and the adapters of the step under way."""

    def __init__(self) -> None:
        self.num_layers = 0

    @abstractmethod
    def linear(self, inputs: int, outputs: int) -> LoRAOp:
        """Adds to a linear layer's outputs; both widths are padded."""

    @abstractmethod
    def grouped_linear(self, groups: int, inputs: int, outputs: int) -> LoRAOp:
        """Adds to the outputs of linear layers side by side."""

    @abstractmethod
    def experts(self) -> ExpertsLoRA:
        """Adds to the products of experts, which are two layers (``ExpertsLoRA.layer``).

        Outputs of the first are gates, if any, padded, then ups.
        """

    @abstractmethod
    def pack(self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype) -> PackedAdapter:
        """An adapter of these weights, by ``LoRAOp.layer``, rounded to ``dtype``, the model's. From any thread."""

    def place(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the host, where layers compute. From any thread."""
        return x

    @abstractmethod
    def begin(self, step: StepAdapters) -> None:
        """Let ops add what these adapters add, until ``end``."""

    @abstractmethod
    def end(self) -> None: ...

    @contextmanager
    def computing(self, step: StepAdapters | None) -> Iterator[None]:
        """The adapters of a step while it is computed; None: no row has one."""
        if step is not None:
            self.begin(step)
        try:
            yield
        finally:
            if step is not None:
                self.end()

    def rehearsing(self, rows: int, ranks: int) -> AbstractContextManager[None]:
        """Launch what adds nothing now, but what adapters of later steps add, if it is captured and replayed within
        ``computing``: of steps of up to ``rows`` rows, always as many, whose layers have up to ``ranks`` ranks.

        Only ops of GPUs can.
        """
        raise RuntimeError(f"{type(self).__name__} launches nothing that a graph could capture")

    def _next_layer(self) -> int:
        self.num_layers += 1
        return self.num_layers - 1


def grouped(x: torch.Tensor) -> torch.Tensor:
    """``LoRAWeights.a`` or ``LoRAOutputs.b`` with a dimension of groups, where there are none one."""
    return x if x.ndim == 3 else x[None]


class _TorchAdapter:
    def __init__(self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype) -> None:
        def rounded(x: torch.Tensor) -> torch.Tensor:
            return grouped(x).to(dtype).float()

        self.layers = {
            layer: LoRAWeights(
                rounded(weights.a),
                weights.scales,
                tuple(LoRAOutputs(each.ranks, each.columns, rounded(each.b)) for each in weights.outputs),
                weights.experts,
            )
            for layer, weights in layers.items()
        }

    @property
    def nbytes(self) -> int:
        return sum(each.a.nbytes + sum(some.b.nbytes for some in each.outputs) for each in self.layers.values())


class _TorchLoRA(LoRAOp):
    def __init__(self, ops: TorchLoRAOps) -> None:
        super().__init__(ops.num_layers)
        self._ops = ops

    def __call__(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        step = self._ops.step
        if step is None:
            return
        groups = step.of(len(x))
        inputs, outputs = (each if each.ndim == 3 else each[:, None] for each in (x, y))
        groups_of_layer = torch.arange(inputs.shape[1])[:, None]
        for place, adapter in enumerate(step.adapters):
            assert isinstance(adapter, _TorchAdapter)
            rows = torch.from_numpy(groups.rows[groups.starts[place] : groups.starts[place + 1]]).long()
            if (weights := adapter.layers.get(self.layer)) is None or not len(rows):
                continue
            inner = (inputs[rows].float().transpose(0, 1) @ weights.a.mT) * weights.scales
            for each in weights.outputs:
                added = inner[..., each.ranks.start : each.ranks.stop] @ each.b.mT * scale
                here = rows[:, None, None], groups_of_layer, each.columns
                outputs[here] = (outputs[here].float() + added.transpose(0, 1)).to(y.dtype)


class TorchExpertsLoRA(ExpertsLoRA):
    """Adds to one expert after the other."""

    def __init__(self, ops: TorchLoRAOps) -> None:
        super().__init__(ops.num_layers)
        self._ops = ops

    def __call__(
        self, layer: int, expert: int, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor, count: int
    ) -> None:
        """Add to ``y`` [n, N] float32, an expert's outputs for ``x`` [n, K], of ``rows`` [n] among ``count``."""
        step = self._ops.step
        if step is None:
            return
        groups = step.of(count)
        for place, adapter in enumerate(step.adapters):
            assert isinstance(adapter, _TorchAdapter)
            if (weights := adapter.layers.get(layer)) is None:
                continue
            assert weights.experts is not None
            own = torch.from_numpy(groups.rows[groups.starts[place] : groups.starts[place + 1]])
            here, group = torch.isin(rows, own), int(weights.experts[expert])
            if group < 0 or not here.any():
                continue
            inner = x[here].float() @ weights.a[group].T * weights.scales[group]
            for each in weights.outputs:
                added = inner[:, each.ranks.start : each.ranks.stop] @ each.b[group].T
                y[here] = y[here].index_add(1, each.columns, added)


class TorchLoRAOps(LoRAOps):
    """Computes by torch, one adapter after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.step: StepAdapters | None = None

    def linear(self, inputs: int, outputs: int) -> LoRAOp:
        op = _TorchLoRA(self)
        self._next_layer()
        return op

    def grouped_linear(self, groups: int, inputs: int, outputs: int) -> LoRAOp:
        return self.linear(inputs, outputs)

    def experts(self) -> ExpertsLoRA:
        op = TorchExpertsLoRA(self)
        self._next_layer()
        self._next_layer()
        return op

    def pack(self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype) -> PackedAdapter:
        return _TorchAdapter(layers, dtype)

    def begin(self, step: StepAdapters) -> None:
        self.step = step

    def end(self) -> None:
        self.step = None
