"""Rotary position embedding of queries and keys, computed in float32.

Rotated keys and their values can be written to the KV cache at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate(
    heads,
    weights,
    cos,
    sin,
    cache,
    slots,
    stride,
    values_offset,
    block_stride,
    NORMALIZED: tl.constexpr,
    EPSILON: tl.constexpr,
    NUM_QUERY_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    CACHED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Program (t, i): TOGETHER heads of row t are normalized, if wanted, and rotated: queries in place, then keys.

    CACHED: keys, and the values after them unchanged, go to the row's slot of ``cache`` (laid out as in
    ``attention.py``), or nowhere if that is below 0. Else keys are rotated in place, and values are not looked at.

    A head has 2 · HALF elements, of which i and HALF + i are a pair; WIDTH: HALF rounded up to a power of two.
    ``weights`` [2 (query heads, key heads), 2 · HALF] are the norms'. ``cos`` and ``sin`` are [T, HALF] float32.
    """
    row = tl.program_id(0).to(tl.int64)
    head, column = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER), tl.arange(0, WIDTH)
    in_half = column < HALF
    count: tl.constexpr = NUM_QUERY_HEADS + (2 if CACHED else 1) * NUM_KV_HEADS
    mask = (head < count)[:, None] & in_half[None, :]
    places = heads + row * stride + head[:, None] * (2 * HALF) + column[None, :]
    first = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=mask, other=0.0).to(tl.float32)
    x, y = first, second
    if NORMALIZED:
        squares = tl.sum(first * first + second * second, 1)
        scale = (1.0 / tl.sqrt(squares / (2 * HALF) + EPSILON))[:, None]
        weight = weights + (head >= NUM_QUERY_HEADS).to(tl.int32)[:, None] * (2 * HALF) + column[None, :]
        x = first * scale * tl.load(weight, mask=mask, other=0.0).to(tl.float32)
        y = second * scale * tl.load(weight + HALF, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos + row * HALF + column, mask=in_half, other=0.0)[None, :]
    s = tl.load(sin + row * HALF + column, mask=in_half, other=0.0)[None, :]
    kind = heads.dtype.element_ty
    turned, turned_too = (x * c - y * s).to(kind), (y * c + x * s).to(kind)
    if CACHED:
        in_place = mask & (head < NUM_QUERY_HEADS)[:, None]
        slot = tl.load(slots + row)
        if slot >= 0:
            kept = mask & (head >= NUM_QUERY_HEADS)[:, None]
            is_value = head >= NUM_QUERY_HEADS + NUM_KV_HEADS
            kv_head = head - NUM_QUERY_HEADS - is_value.to(tl.int32) * NUM_KV_HEADS
            line = (slot // BLOCK_SIZE) * block_stride + (kv_head * BLOCK_SIZE + slot % BLOCK_SIZE) * (2 * HALF)
            line += is_value.to(tl.int64) * values_offset
            target = cache + line[:, None] + column[None, :]
            tl.store(target, tl.where(is_value[:, None], first.to(kind), turned), mask=kept)
            tl.store(target + HALF, tl.where(is_value[:, None], second.to(kind), turned_too), mask=kept)
    else:
        in_place = mask
    tl.store(places, turned, mask=in_place)
    tl.store(places + HALF, turned_too, mask=in_place)
