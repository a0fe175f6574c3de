"""What adapters add, by torch: one adapter after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from engine_core.ops.lora import (
    ExpertsLoRA,
    LoRAOp,
    LoRAOps,
    LoRAOutputs,
    LoRAWeights,
    MergedLoRA,
    PackedAdapter,
    StepAdapters,
    grouped,
)


class _TorchAdapter:
    def __init__(
        self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype, merged: Mapping[int, torch.Tensor]
    ) -> None:
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
        self.merged = dict(merged)

    @property
    def nbytes(self) -> int:
        of_ranks = (each.a.nbytes + sum(some.b.nbytes for some in each.outputs) for each in self.layers.values())
        return sum(of_ranks) + sum(each.nbytes for each in self.merged.values())


def _adapted_rows(step: StepAdapters, count: int) -> Iterator[tuple[_TorchAdapter, torch.Tensor]]:
    """Each adapter of a computation of ``count`` rows, and its rows, int64."""
    groups = step.of(count)
    for place, adapter in enumerate(step.adapters):
        assert isinstance(adapter, _TorchAdapter)
        yield adapter, torch.from_numpy(groups.rows[groups.starts[place] : groups.starts[place + 1]]).long()


class _TorchLoRA(LoRAOp):
    def __init__(self, ops: TorchLoRAOps) -> None:
        super().__init__(ops.num_layers)
        self._ops = ops

    def __call__(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        step = self._ops.step
        if step is None:
            return
        inputs, outputs = (each if each.ndim == 3 else each[:, None] for each in (x, y))
        groups_of_layer = torch.arange(inputs.shape[1])[:, None]
        for adapter, rows in _adapted_rows(step, len(x)):
            if (weights := adapter.layers.get(self.layer)) is None or not len(rows):
                continue
            inner = (inputs[rows].float().transpose(0, 1) @ weights.a.mT) * weights.scales
            for each in weights.outputs:
                added = inner[..., each.ranks.start : each.ranks.stop] @ each.b.mT * scale
                here = rows[:, None, None], groups_of_layer, each.columns
                outputs[here] = (outputs[here].float() + added.transpose(0, 1)).to(y.dtype)


class TorchExpertsLoRA(ExpertsLoRA):
    """Adds to one expert after the other."""

    def __init__(self, ops: TorchLoRAOps, layer: int) -> None:
        super().__init__(layer)
        self._ops = ops

    def __call__(
        self, layer: int, expert: int, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor, count: int
    ) -> None:
        """Add to ``y`` [n, N] float32, an expert's outputs for ``x`` [n, K], of ``rows`` [n] among ``count``."""
        step = self._ops.step
        if step is None:
            return
        for adapter, own in _adapted_rows(step, count):
            if (weights := adapter.layers.get(layer)) is None:
                continue
            assert weights.experts is not None
            here, group = torch.isin(rows, own), int(weights.experts[expert])
            if group < 0 or not here.any():
                continue
            inner = x[here].float() @ weights.a[group].T * weights.scales[group]
            for each in weights.outputs:
                added = inner[:, each.ranks.start : each.ranks.stop] @ each.b[group].T
                y[here] = y[here].index_add(1, each.columns, added)


class TorchMergedLoRA(MergedLoRA):
    """Gives the weights of rows that have others than the model's."""

    def __init__(self, ops: TorchLoRAOps, layer: int) -> None:
        super().__init__(layer)
        self._ops = ops

    def weights(self, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Rows [n] among ``count``, and their weight [N, K]."""
        step = self._ops.step
        if step is None:
            return
        for adapter, rows in _adapted_rows(step, count):
            if (weight := adapter.merged.get(self.layer)) is not None:
                yield rows, weight


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

    def _of_experts(self, layer: int) -> ExpertsLoRA:
        return TorchExpertsLoRA(self, layer)

    def _of_merged(self, layer: int) -> MergedLoRA:
        return TorchMergedLoRA(self, layer)

    def pack(
        self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype, merged: Mapping[int, torch.Tensor] | None = None
    ) -> PackedAdapter:
        return _TorchAdapter(layers, dtype, merged or {})

    def begin(self, step: StepAdapters) -> None:
        self.step = step

    def end(self) -> None:
        self.step = None
