"""What is done to each row between products of matrices: normalization, rotation, gated activation; all in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalize(x, weight, output, x_stride, EPSILON: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Program t: row t of ``x`` [T, SIZE], divided by its root mean square, times ``weight``. WIDTH: a power of two."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    mask = columns < SIZE
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + EPSILON)
    result = values * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + columns, result.to(output.dtype.element_ty), mask=mask)


@triton.jit
def rotate(
    heads,
    weights,
    cos,
    sin,
    stride,
    NORMALIZED: tl.constexpr,
    EPSILON: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_QUERY_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program (t, i): TOGETHER of the first NUM_HEADS heads of row t are normalized, if wanted, and rotated, in place.

    A head is 2 · HALF numbers, of which number i and number HALF + i are a pair; WIDTH: the power of two from HALF up.
    ``weights`` [2 (query heads, others), 2 · HALF] are the norms'. ``cos`` and ``sin`` are [T, HALF] float32.
    """
    row = tl.program_id(0).to(tl.int64)
    head, column = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER), tl.arange(0, WIDTH)
    in_half = column < HALF
    mask = (head < NUM_HEADS)[:, None] & in_half[None, :]
    places = heads + row * stride + head[:, None] * (2 * HALF) + column[None, :]
    first = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMALIZED:
        squares = tl.sum(first * first + second * second, 1)
        scale = (1.0 / tl.sqrt(squares / (2 * HALF) + EPSILON))[:, None]
        weight = weights + (head >= NUM_QUERY_HEADS).to(tl.int32)[:, None] * (2 * HALF) + column[None, :]
        first = first * scale * tl.load(weight, mask=mask, other=0.0).to(tl.float32)
        second = second * scale * tl.load(weight + HALF, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos + row * HALF + column, mask=in_half, other=0.0)[None, :]
    s = tl.load(sin + row * HALF + column, mask=in_half, other=0.0)[None, :]
    tl.store(places, (first * c - second * s).to(heads.dtype.element_ty), mask=mask)
    tl.store(places + HALF, (second * c + first * s).to(heads.dtype.element_ty), mask=mask)


@triton.jit
def silu_and_multiply(gate_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (t, i): BLOCK numbers of silu(gate) · up of row t; ``gate_up`` is [T, 2 · SIZE], gate first."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(gate_up + row * (2 * SIZE) + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * SIZE) + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * SIZE + columns, result.to(output.dtype.element_ty), mask=mask)
