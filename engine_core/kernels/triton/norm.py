"""Normalization of rows, computed in float32: RMS norm or layer norm."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalize(
    x,
    weight,
    bias,
    residual,
    output,
    x_stride,
    output_stride,
    EPSILON: tl.constexpr,
    SCALE: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    CENTERED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Program t: row t of ``x`` [T, SIZE], divided by its root mean square, times ``weight``. WIDTH: a power of two.

    CENTERED: minus its mean, divided by its deviation, times ``weight``, plus ``bias``. Both are [SIZE] float32.
    ADDED: plus row t of ``residual`` [T, SIZE], dense. The result is multiplied by SCALE. ``output`` may be ``x``.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    mask = columns < SIZE
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if CENTERED:
        values = tl.where(mask, values - tl.sum(values, 0) / SIZE, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + EPSILON)
    result = values * scale * tl.load(weight + columns, mask=mask, other=0.0)
    if CENTERED:
        result += tl.load(bias + columns, mask=mask, other=0.0)
    if ADDED:
        result += tl.load(residual + row * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    if SCALE != 1.0:
        result *= SCALE
    tl.store(output + row * output_stride + columns, result.to(output.dtype.element_ty), mask=mask)
