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


class MergedLoRA:
    """The weights of a small layer in float32 that rows with adapters have in place of the model's.

    The layer's op is called with it.
    """

    def __init__(self, layer: int) -> None:
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

    def experts(self) -> ExpertsLoRA:
        """Adds to the products of experts, which are two layers; only if the backend ``adapts_experts``.

        Outputs of the first layer are gates, if any, padded, then ups.
        """
        first = self._next_layer()
        self._next_layer()
        return self._of_experts(first)

    def _of_experts(self, layer: int) -> ExpertsLoRA:
        return ExpertsLoRA(layer)

    def merged(self) -> MergedLoRA:
        """Weights of a small layer; only if the backend ``adapts_streams``."""
        return self._of_merged(self._next_layer())

    def _of_merged(self, layer: int) -> MergedLoRA:
        return MergedLoRA(layer)

    @abstractmethod
    def pack(
        self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype, merged: Mapping[int, torch.Tensor] | None = None
    ) -> PackedAdapter:
        """An adapter of these weights, by ``LoRAOp.layer``, rounded to ``dtype``, the model's. From any thread.

        ``merged``: [N, K] float32, of small layers, by ``MergedLoRA.layer``; kept as they are.
        """

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
