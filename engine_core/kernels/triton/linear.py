"""A matrix product whose rows do not depend on each other: y = x · Wᵀ + b + residual.

Tiles have the same size for any number of rows, nothing is split along K, and K is read in ascending order. So the same
instructions lead to a row's result for any number of rows; libraries, which choose kernels by size, do not promise
that.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x,
    weight,
    bias,
    residual,
    output,
    num_rows,
    residual_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Programs take turns at the tiles [ROWS, COLUMNS] of ``output`` [num_rows, OUTPUTS].

    Tiles of the same columns follow each other, so that each part of ``weight`` [OUTPUTS, INPUTS] is read from memory
    once. ``x`` is [num_rows, INPUTS]; rows of ``residual`` are ``residual_stride`` apart. SCALE: of products and bias.
    IEEE: no TF32 for float32. WIDE: float32 operands, if narrower ones cannot be used.
    """
    row_tiles = (num_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(0), row_tiles * ((OUTPUTS + COLUMNS - 1) // COLUMNS), tl.num_programs(0)):
        rows = (tile % row_tiles) * ROWS + tl.arange(0, ROWS)
        columns = (tile // row_tiles) * COLUMNS + tl.arange(0, COLUMNS)
        depth = tl.arange(0, DEPTH)
        # Rows and columns beyond the last repeat it: they are computed, but not stored.
        x_places = x + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * INPUTS + depth[None, :]
        weight_places = weight + tl.minimum(columns, OUTPUTS - 1).to(tl.int64)[None, :] * INPUTS + depth[:, None]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, INPUTS, DEPTH):
            if INPUTS % DEPTH == 0:
                a, b = tl.load(x_places + k), tl.load(weight_places + k)
            else:
                a = tl.load(x_places + k, mask=(k + depth < INPUTS)[None, :], other=0.0)
                b = tl.load(weight_places + k, mask=(k + depth < INPUTS)[:, None], other=0.0)
            if WIDE:
                acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
            elif IEEE:
                acc = tl.dot(a, b, acc, input_precision="ieee")
            else:
                acc = tl.dot(a, b, acc)
        mask = (rows < num_rows)[:, None] & (columns < OUTPUTS)[None, :]
        places = rows.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
        if BIASED:
            acc += tl.load(bias + columns, mask=columns < OUTPUTS, other=0.0).to(tl.float32)[None, :]
        if SCALE != 1.0:
            acc = acc * SCALE
        if ADDED:
            added = residual + rows.to(tl.int64)[:, None] * residual_stride + columns[None, :]
            acc += tl.load(added, mask=mask, other=0.0).to(tl.float32)
        tl.store(output + places, acc.to(output.dtype.element_ty), mask=mask)
