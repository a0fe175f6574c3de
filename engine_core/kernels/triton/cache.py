"""The write to a paged KV cache, which is laid out as in ``attention.py``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_keys_and_values(
    key,
    value,
    cache,
    slots,
    key_stride,
    value_stride,
    values_offset,
    block_stride,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program t copies row t of ``key`` and ``value`` [T, Hkv · D] to its slot, or nowhere if the slot is below 0.

    ``values_offset`` and ``block_stride`` count elements of the cache; WIDTH is Hkv · D rounded up to a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        columns = tl.arange(0, WIDTH)
        mask = columns < NUM_KV_HEADS * HEAD_DIM
        head, dim = columns // HEAD_DIM, columns % HEAD_DIM
        place = cache + (slot // BLOCK_SIZE) * block_stride + (head * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + dim
        tl.store(place, tl.load(key + row * key_stride + columns, mask=mask), mask=mask)
        tl.store(place + values_offset, tl.load(value + row * value_stride + columns, mask=mask), mask=mask)


@triton.jit
def write_latents(
    latent,
    rope,
    cache,
    slots,
    latent_stride,
    rope_stride,
    block_stride,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Program t copies row t of ``latent`` [T, HEAD_DIM] and ``rope`` [T, ROPE] to its slot, unless that is below 0.
    DIMS and ROPE_DIMS: powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        dims, rope_dims = tl.arange(0, DIMS), tl.arange(0, ROPE_DIMS)
        place = cache + (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * (HEAD_DIM + ROPE)
        mask, rope_mask = dims < HEAD_DIM, rope_dims < ROPE
        tl.store(place + dims, tl.load(latent + row * latent_stride + dims, mask=mask), mask=mask)
        rotated = tl.load(rope + row * rope_stride + rope_dims, mask=rope_mask)
        tl.store(place + HEAD_DIM + rope_dims, rotated, mask=rope_mask)
