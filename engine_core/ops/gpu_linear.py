"""Linear layers on NVIDIA GPUs: by torch, which calls cuBLAS, or by our own batch-invariant kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.linear import multiply
from engine_core.ops.torch import TorchLinear


class LibraryLinear(TorchLinear):
    """Computed by torch: fastest, but a row's result may depend on the number of rows."""

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``residual`` is overwritten."""
        y = self._result(x, residual, scale, dtype)
        return y if into is None else into.copy_(y)

    def _result(
        self, x: torch.Tensor, residual: torch.Tensor | None, scale: float, dtype: torch.dtype | None
    ) -> torch.Tensor:
        if dtype is not None and dtype != x.dtype:
            y = torch.mm(x, self.weight.t(), out_dtype=dtype)
            y = (y if self.bias is None else y + self.bias).mul_(scale)
            return y if residual is None else y + residual
        if residual is None:
            y = torch.nn.functional.linear(x, self.weight, self.bias)
            return y if scale == 1.0 else y.mul_(scale)
        if self.bias is not None:
            residual.add_(self.bias, alpha=scale)
        return residual.addmm_(x, self.weight.t(), alpha=scale)


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """How the kernel tiles a product, decided by the weight alone."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @staticmethod
    def of(out_features: int, itemsize: int) -> ProductTiles:
        """Narrow weights get smaller tiles, so that even a single row has tiles for all processors."""
        if itemsize == 4:
            return ProductTiles(32, 32, 32, warps=4, stages=2)
        return ProductTiles(64, 64 if out_features < 1 << 14 else 128, 64, warps=4, stages=4)


class InvariantLinear(TorchLinear):
    """Computed by Ringline's kernel: a row's result depends on that row alone."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, processors: int) -> None:
        """Copy the tensors. ``processors``: multiprocessors of the device."""
        super().__init__(weight, bias)
        self._tiles = ProductTiles.of(self.out_features, weight.dtype.itemsize)
        self._column_tiles = -(-self.out_features // self._tiles.columns)
        self._programs = 2 * processors

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = x.contiguous()
        output = torch.empty(len(x), self.out_features, dtype=dtype or x.dtype, device=x.device)
        tiles = self._tiles
        count = -(-len(x) // tiles.rows) * self._column_tiles
        multiply[(min(count, self._programs),)](
            x,
            self.weight,
            self.weight if self.bias is None else self.bias,
            x if residual is None else residual,
            output,
            len(x),
            0 if residual is None else residual.stride(0),
            OUTPUTS=self.out_features,
            INPUTS=self.in_features,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            DEPTH=tiles.depth,
            BIASED=self.bias is not None,
            ADDED=residual is not None,
            IEEE=x.dtype == torch.float32,
            WIDE=x.device.type == "cpu",  # under Triton's interpreter
            SCALE=scale,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **AS_WRITTEN,
        )
        return output if into is None else into.copy_(output)
