"""A matrix product with a weight that stays quantized: y = x · Wᵀ + b + residual.

Like ``linear.multiply``, but tiles of the weight are expanded from codes when needed: each number in float32, then
rounded to the type of ``x``, as if the weight had been expanded beforehand.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_groups(numbers, columns, depth, k, GROUPS: tl.constexpr, GROUP_SIZE: tl.constexpr, DEPTH: tl.constexpr):
    """[COLUMNS, DEPTH], or [COLUMNS, 1] if DEPTH is within one group, of ``numbers`` [OUTPUTS, GROUPS]."""
    if GROUP_SIZE % DEPTH == 0:
        group = tl.minimum(k // GROUP_SIZE, GROUPS - 1)
        found = tl.load(numbers + columns.to(tl.int64) * GROUPS + group)[:, None]
    else:
        groups = tl.minimum((k + depth) // GROUP_SIZE, GROUPS - 1)
        found = tl.load(numbers + columns.to(tl.int64)[:, None] * GROUPS + groups[None, :])
    return found.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def multiply_quantized(
    x,
    codes,
    codebook,
    scales,
    offsets,
    bias,
    residual,
    output,
    num_rows,
    residual_stride,
    output_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    NIBBLES: tl.constexpr,
    LINEAR: tl.constexpr,
    FIRST: tl.constexpr,
    ZEROS: tl.constexpr,
    MINIMA: tl.constexpr,
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

    ``codes`` are [OUTPUTS, INPUTS] bytes or, with NIBBLES, half as many, the first of two codes in the low half;
    INPUTS is even. A code stands for itself plus FIRST if LINEAR, else for its entry in ``codebook``. ``scales`` and
    ``offsets`` (ZEROS: codes, or MINIMA) are [OUTPUTS, GROUPS]. The rest is as in ``linear.multiply``.
    """
    PACKED: tl.constexpr = 2 if NIBBLES else 1
    row_tiles = (num_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(0), row_tiles * ((OUTPUTS + COLUMNS - 1) // COLUMNS), tl.num_programs(0)):
        rows = (tile % row_tiles) * ROWS + tl.arange(0, ROWS)
        columns = (tile // row_tiles) * COLUMNS + tl.arange(0, COLUMNS)
        known = tl.minimum(columns, OUTPUTS - 1)
        depth, packed = tl.arange(0, DEPTH), tl.arange(0, DEPTH // PACKED)
        x_places = x + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * INPUTS + depth[None, :]
        places = codes + known.to(tl.int64)[:, None] * (INPUTS // PACKED) + packed[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, INPUTS, DEPTH):
            a = tl.load(x_places + k, mask=(k + depth < INPUTS)[None, :], other=0.0)
            bytes_ = tl.load(places + k // PACKED, mask=(k // PACKED + packed < INPUTS // PACKED)[None, :], other=0)
            code = tl.interleave(bytes_ & 15, bytes_ >> 4) if NIBBLES else bytes_
            number = code.to(tl.float32) + FIRST if LINEAR else tl.load(codebook + code.to(tl.int32))
            if ZEROS:
                number -= _of_groups(offsets, known, depth, k, GROUPS, GROUP_SIZE, DEPTH)
            number *= _of_groups(scales, known, depth, k, GROUPS, GROUP_SIZE, DEPTH)
            if MINIMA:
                number += _of_groups(offsets, known, depth, k, GROUPS, GROUP_SIZE, DEPTH)
            # Rounded as an expanded weight would be.
            b = tl.trans(number.to(x.dtype.element_ty))
            if WIDE:
                acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
            elif IEEE:
                acc = tl.dot(a, b, acc, input_precision="ieee")
            else:
                acc = tl.dot(a, b, acc)
        mask = (rows < num_rows)[:, None] & (columns < OUTPUTS)[None, :]
        if BIASED:
            acc += tl.load(bias + columns, mask=columns < OUTPUTS, other=0.0).to(tl.float32)[None, :]
        if SCALE != 1.0:
            acc = acc * SCALE
        if ADDED:
            added = residual + rows.to(tl.int64)[:, None] * residual_stride + columns[None, :]
            acc += tl.load(added, mask=mask, other=0.0).to(tl.float32)
        to = output + rows.to(tl.int64)[:, None] * output_stride + columns[None, :]
        tl.store(to, acc.to(output.dtype.element_ty), mask=mask)
