"""A linear layer with weights of different formats: several ops, each for some of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from engine_core.kernels.capture import kernel_output
from engine_core.ops.base import LinearOp


class SegmentedLinear(LinearOp):
    """Ops with the same inputs, whose outputs are concatenated."""

    def __init__(self, ops: Sequence[LinearOp]) -> None:
        self._ops = tuple(ops)
        ends = list(accumulate(op.out_features for op in ops))
        self._columns = [slice(end - op.out_features, end) for op, end in zip(ops, ends, strict=True)]
        self.out_features, self.in_features = ends[-1], ops[0].in_features

    @property
    def nbytes(self) -> int:
        return sum(op.nbytes for op in self._ops)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        y = self._output(x, dtype or x.dtype) if into is None else into
        for op, columns in zip(self._ops, self._columns, strict=True):
            own = None if residual is None else residual[:, columns]
            op(x, residual=own, scale=scale, dtype=dtype, into=y[:, columns])
        return y

    def _output(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[M, N], uninitialized, on the device of ``x``."""
        if x.device.type == "cpu":
            return kernel_output(len(x), self.out_features, dtype)
        return torch.empty(len(x), self.out_features, dtype=dtype, device=x.device)

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no embedding is tied to layers of several formats")
