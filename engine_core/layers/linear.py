"""A linear layer of oneDNN, for where there are no native kernels: its weight is packed once, and results do not depend
on the other rows of the batch.

The weight is reordered for oneDNN and only the packed copy is kept. Measured on AVX-512 and AVX2, a packed
product gives a row the same bits for every number of rows but one, and for every thread count: one row alone takes
another kernel, so it is computed as two. MKL's kernels (``torch.nn.functional.linear`` in float32) have no such
property.

oneDNN compiles a kernel for every number of rows it sees (0.7 ms, 0.6 MB for bfloat16) and keeps the last 1024: steps
of ever new sizes would compile all the time and take 600 MB. So rows are padded to eight sizes between one power of
two and the next, which adds some 5 % of work, changes no bit, and leaves 64 kernels for each shape of weight up to
2048 rows.

oneDNN multiplies bfloat16 only with AVX-512 (or AVX-NE-CONVERT) and float16 only with AVX512-FP16. Elsewhere weights of
these types are packed as float32: twice the memory, but stable, and from four rows on several times faster than
torch's own loops, which cost as much per row as the whole packed product.
"""

from __future__ import annotations

from functools import cache

import torch


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight, None)
    return packed


def _multiply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return y


@cache
def _onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs and multiplies this type on this CPU, found out by trying."""
    try:
        _multiply(torch.zeros(2, 16, dtype=dtype), _reorder(torch.zeros(16, 16, dtype=dtype)), None)
    except (AttributeError, RuntimeError):  # no such operator in this build, or not for this type
        return False
    return True


def packed_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype | None:
    """The type in which ``Linear`` packs weights of ``dtype``; None where it keeps them as they are."""
    if device.type != "cpu":
        return None
    return next((candidate for candidate in (dtype, torch.float32) if _onednn_multiplies(candidate)), None)


def padded_rows(rows: int) -> int:
    """The number of rows that ``Linear`` computes on CPU for ``rows`` ≥ 1: even, and one of eight per doubling."""
    step = 2 if rows <= 16 else 1 << ((rows - 1).bit_length() - 4)
    return -(-rows // step) * step


class Linear:
    """y = x · Wᵀ + b."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Pack ``weight`` [N, K]. The caller lets go of it; where nothing is packed, a copy is kept."""
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.packed_dtype = packed_dtype(weight.dtype, weight.device)
        """None: ``weight`` is kept unpacked, row by row."""
        if self.packed_dtype is None:
            self.weight = weight.clone()
            self.bias = None if bias is None else bias.clone()
        else:
            self.weight = _reorder(weight.to(self.packed_dtype))
            self.bias = None if bias is None else bias.to(self.packed_dtype, copy=True)

    @property
    def nbytes(self) -> int:
        """Memory of the weight and the bias."""
        weight = self.weight.numel() * self.weight.element_size()
        if self.packed_dtype is not None:
            weight = torch.ops.mkldnn._nbytes.default(self.weight)
        return weight + (0 if self.bias is None else self.bias.nbytes)

    def __call__(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], plus ``residual`` [M, N]; in the type of ``x``, or in float32 if ``dtype`` is."""
        y = self._multiply(x).to(x.dtype if dtype is None else dtype)
        return y if residual is None else residual + y

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed_dtype is None:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        count = x.shape[0]
        rows = x.to(self.packed_dtype)
        if (padding := padded_rows(count) - count) > 0:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, padding))
        return _multiply(rows, self.weight, self.bias)[:count]
