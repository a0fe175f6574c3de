"""Normalization of heads and rotary position embedding of queries and keys, computed in float32.

Keys and values can be written directly to the KV cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _store(heads, places, cache, lines, x, in_place, kept, CACHED: tl.constexpr):
    """Store ``x`` for heads that stay in place, and, if CACHED, in the cache for those ``kept`` there."""
    x = x.to(heads.dtype.element_ty)
    tl.store(places, x, mask=in_place)
    if CACHED:
        tl.store(cache + lines, x, mask=kept)


@triton.jit
def rotate(
    heads,
    weights,
    cos,
    sin,
    query_scales,
    cache,
    slots,
    stride,
    head_stride,
    values_offset,
    block_stride,
    NORMALIZED: tl.constexpr,
    VALUES_NORMALIZED: tl.constexpr,
    SCALED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    EPSILON: tl.constexpr,
    NUM_QUERY_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    CACHED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Program (t, i): TOGETHER heads of row t are normalized, if wanted, and rotated: queries, then keys, then values.

    CACHED: keys and values go to the row's slot of ``cache`` (laid out as in ``attention.py``), or nowhere if that is
    below 0. Else they stay in place, and values are read only if they are normalized.

    Of a head's HEAD_DIM elements the first 2 · HALF are rotated in pairs: i and HALF + i, or, INTERLEAVED, 2i and
    2i + 1. WIDTH and REST_WIDTH: HALF and the number of other elements, rounded up to a power of two; 0 for none.
    ``weights`` [2 or 3 (queries, keys, values), HEAD_DIM] float32 are the norms'. ``cos`` and ``sin`` are [T, HALF]
    float32. SCALED: queries are multiplied by ``query_scales`` [T].
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    rotated: tl.constexpr = NUM_QUERY_HEADS + NUM_KV_HEADS
    count: tl.constexpr = rotated + (NUM_KV_HEADS if CACHED or VALUES_NORMALIZED else 0)
    there, is_query, is_value = head < count, head < NUM_QUERY_HEADS, head >= rotated
    kind = (head >= NUM_QUERY_HEADS).to(tl.int32) + is_value.to(tl.int32)
    line, kept, in_place = head * 0, there, there
    if CACHED:
        slot = tl.load(slots + row)
        kv_head = head - NUM_QUERY_HEADS - is_value.to(tl.int32) * NUM_KV_HEADS
        line = (slot // BLOCK_SIZE) * block_stride + (kv_head * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
        line += is_value.to(tl.int64) * values_offset
        kept, in_place = there & (head >= NUM_QUERY_HEADS) & (slot >= 0), there & is_query
    start = heads + row * stride + head * head_stride
    squares = tl.zeros([TOGETHER], tl.float32)
    if WIDTH > 0:
        pair = tl.arange(0, WIDTH)
        one = 2 * pair if INTERLEAVED else pair
        other = 2 * pair + 1 if INTERLEAVED else HALF + pair
        pairs = (pair < HALF)[None, :]
        first = tl.load(start[:, None] + one[None, :], mask=there[:, None] & pairs, other=0.0).to(tl.float32)
        second = tl.load(start[:, None] + other[None, :], mask=there[:, None] & pairs, other=0.0).to(tl.float32)
        squares += tl.sum(first * first + second * second, 1)
    if REST_WIDTH > 0:
        column = 2 * HALF + tl.arange(0, REST_WIDTH)
        columns = (column < HEAD_DIM)[None, :]
        rest = tl.load(start[:, None] + column[None, :], mask=there[:, None] & columns, other=0.0).to(tl.float32)
        squares += tl.sum(rest * rest, 1)
    scale = tl.full([TOGETHER], 1.0, tl.float32)
    normalized = there
    if NORMALIZED:
        normalized = there if VALUES_NORMALIZED else there & (head < rotated)
        scale = tl.where(normalized, 1.0 / tl.sqrt(squares / HEAD_DIM + EPSILON), 1.0)
    if SCALED:
        factor = tl.where(is_query, tl.load(query_scales + row), 1.0)[:, None]
    weight = weights + kind * HEAD_DIM
    if WIDTH > 0:
        x, y = first * scale[:, None], second * scale[:, None]
        if NORMALIZED:
            mask = normalized[:, None] & pairs
            x *= tl.load(weight[:, None] + one[None, :], mask=mask, other=1.0)
            y *= tl.load(weight[:, None] + other[None, :], mask=mask, other=1.0)
        c = tl.load(cos + row * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
        s = tl.load(sin + row * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
        turned = tl.where(is_value[:, None], x, x * c - y * s)
        turned_too = tl.where(is_value[:, None], y, y * c + x * s)
        if SCALED:
            turned, turned_too = turned * factor, turned_too * factor
        for_place, for_cache = in_place[:, None] & pairs, kept[:, None] & pairs
        lines = line[:, None]
        _store(heads, start[:, None] + one[None, :], cache, lines + one[None, :], turned, for_place, for_cache, CACHED)
        _store(
            heads,
            start[:, None] + other[None, :],
            cache,
            lines + other[None, :],
            turned_too,
            for_place,
            for_cache,
            CACHED,
        )
    if REST_WIDTH > 0:
        z = rest * scale[:, None]
        if NORMALIZED:
            z *= tl.load(weight[:, None] + column[None, :], mask=normalized[:, None] & columns, other=1.0)
        if SCALED:
            z = z * factor
        places, lines = start[:, None] + column[None, :], line[:, None] + column[None, :]
        _store(heads, places, cache, lines, z, in_place[:, None] & columns, kept[:, None] & columns, CACHED)
