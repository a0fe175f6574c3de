"""Activations of a feed-forward block, with or without a gate, computed in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _applied(x, KIND: tl.constexpr):
    """``KIND`` is a number of ``engine_core.activation.Activation``."""
    if KIND == 0:
        return x / (1.0 + tl.exp(-x))
    if KIND == 1:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if KIND == 2:
        return x / (1.0 + tl.exp(-1.5957691216057308 * x * (1.0 + 0.044715 * x * x)))
    if KIND == 5:
        return 1.0 / (1.0 + tl.exp(-x))
    positive = tl.where(x < 0.0, 0.0, x)  # NaN stays NaN
    return positive * positive if KIND == 6 else positive


@triton.jit
def activate(
    x,
    up,
    output,
    x_stride,
    up_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
):
    """Program (t, i): BLOCK numbers of f(x), for row t of ``x`` [T, SIZE]; GATED: times row t of ``up`` [T, SIZE]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    result = _applied(tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32), KIND)
    if GATED:
        result *= tl.load(up + row * up_stride + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + columns, result.to(output.dtype.element_ty), mask=mask)
