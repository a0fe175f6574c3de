"""Paged attention by our own Triton kernels: for NVIDIA GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from engine_core.attention.base import AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.paged import PagedAttention
from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.attention import attend_chunks, attend_single_rows, join_splits
from engine_core.kernels.triton.cache import write_latents

SMALLEST_HEAD, LARGEST_HEAD = 16, 256
"""Head sizes; those between powers of two are padded in registers. Larger ones exceed the registers."""
_SHORTEST_SPLIT = 256
_MOST_SPLITS = 64
"""Most splits of a sequence: bounds the memory for their results."""
_LEAST_SEQS = 256
"""Kernels are compiled for powers of two of sequences, from this one up."""
_PROGRAMS_PER_PROCESSOR = 4
_FEWEST_ROWS = 16
"""The fewest rows of a matrix product on tensor cores."""
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes and launch options of a kernel."""

    rows: int
    """(position, head of the group) pairs."""
    keys: int
    warps: int
    stages: int


class TritonAttention(PagedAttention):
    """A sequence of length 0 is padding: nothing is read for it."""

    def __init__(self, max_model_len: int, processors: int, uniform: bool) -> None:
        """``processors``: multiprocessors of the device. ``uniform``: chunks use the tiles of single rows.

        Keys are taken in splits, whose size depends on ``max_model_len`` alone; a sequence has at most 64.
        """
        per_split = triton.next_power_of_2(-(-max_model_len // _MOST_SPLITS))
        self._split = max(_SHORTEST_SPLIT, per_split)
        self._max_splits = -(-max_model_len // self._split)
        self._programs = processors * _PROGRAMS_PER_PROCESSOR
        self._uniform = uniform

    def numerics(self, spec: KVCacheSpec) -> str:
        tiles = "uniform" if self._uniform else "two kinds of tiles"
        return f"triton {triton.__version__}, splits of {self._split} keys, {tiles}"

    def attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        return self._attend(query, None, kv_cache, metadata, options)

    def forward_latents(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor,
        latent: torch.Tensor,
        rope: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        width, rope_width = latent.shape[1], rope.shape[1]
        write_latents[(len(latent),)](
            latent,
            rope,
            kv_cache,
            metadata.slot_mapping,
            latent.stride(0),
            rope.stride(0),
            kv_cache.stride(1),
            HEAD_DIM=width,
            DIMS=triton.next_power_of_2(width),
            ROPE=rope_width,
            ROPE_DIMS=triton.next_power_of_2(rope_width),
            BLOCK_SIZE=kv_cache.shape[3],
            **AS_WRITTEN,
        )
        query = query.contiguous()
        return self._attend(query, query_rope, kv_cache, metadata, options).view(query.shape)

    def _attend(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        output = torch.empty(query.shape[0], query.shape[1] * query.shape[2], dtype=query.dtype, device=query.device)
        if metadata.max_query_len > 1:
            self._attend_chunks(query, query_rope, output, kv_cache, metadata, options)
        self._attend_single_rows(query, query_rope, output, kv_cache, metadata, options)
        return output

    def _attend_chunks(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor | None,
        output: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> None:
        num_rows, num_heads, head_dim = query.shape
        num_seqs, group = len(metadata.seq_lens), _group(query, query_rope, kv_cache)
        num_kv_heads = num_heads // group
        single = tiles_of_single_rows(query.dtype.itemsize, head_dim, group)
        tiles = single if self._uniform else tiles_of_chunks(query.dtype.itemsize, head_dim, group)
        until = metadata.visible_until if options.both_ways else None
        attend_chunks[(num_rows // (tiles.rows // group) + num_seqs, num_kv_heads)](
            query,
            query if query_rope is None else query_rope,
            output,
            kv_cache,
            query if options.sinks is None else options.sinks,
            metadata.query_starts,
            metadata.seq_lens,
            metadata.block_tables,
            metadata.query_starts if until is None else until,
            num_seqs,
            query.stride(0),
            *((0, 0) if query_rope is None else query_rope.stride()[:2]),
            metadata.block_tables.stride(0),
            kv_cache.stride(0),
            kv_cache.stride(1),
            options.scale * _LOG2_E,
            NUM_HEADS=num_heads,
            GROUP=group,
            HEAD_DIM=head_dim,
            DIMS=triton.next_power_of_2(head_dim),
            **_rope_widths(query_rope),
            BLOCK_SIZE=kv_cache.shape[3],
            SEQS=max(_LEAST_SEQS, triton.next_power_of_2(num_seqs)),
            ROWS=tiles.rows,
            KEYS=tiles.keys,
            SPLIT=self._split,
            WINDOW=options.sliding_window or 0,
            CHUNKED=options.chunked,
            SOFTCAP=(options.logit_softcap or 0.0) * _LOG2_E,
            SINKS=options.sinks is not None,
            BOTH_WAYS=until is not None,
            IEEE=query.dtype == torch.float32,
            WIDE=_is_interpreted(query),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **AS_WRITTEN,
        )

    def _attend_single_rows(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor | None,
        output: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> None:
        _, num_heads, head_dim = query.shape
        num_seqs, group = len(metadata.seq_lens), _group(query, query_rope, kv_cache)
        num_kv_heads = num_heads // group
        splits = min(self._max_splits, -(-metadata.max_seq_len // self._split))
        partial = torch.empty(num_seqs, splits, num_heads, head_dim, dtype=torch.float32, device=query.device)
        statistics = torch.empty(2, num_seqs, splits, num_heads, dtype=torch.float32, device=query.device)
        tiles = tiles_of_single_rows(query.dtype.itemsize, head_dim, group)
        attend_single_rows[(min(self._programs, num_seqs * splits * num_kv_heads),)](
            query,
            query if query_rope is None else query_rope,
            partial,
            statistics,
            kv_cache,
            metadata.query_starts,
            metadata.seq_lens,
            metadata.block_tables,
            num_seqs,
            splits,
            query.stride(0),
            *((0, 0) if query_rope is None else query_rope.stride()[:2]),
            metadata.block_tables.stride(0),
            kv_cache.stride(0),
            kv_cache.stride(1),
            options.scale * _LOG2_E,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=group,
            HEAD_DIM=head_dim,
            DIMS=triton.next_power_of_2(head_dim),
            **_rope_widths(query_rope),
            BLOCK_SIZE=kv_cache.shape[3],
            SEQS=max(_LEAST_SEQS, triton.next_power_of_2(num_seqs)),
            ROWS=tiles.rows,
            KEYS=tiles.keys,
            SPLIT=self._split,
            WINDOW=options.sliding_window or 0,
            CHUNKED=options.chunked,
            SOFTCAP=(options.logit_softcap or 0.0) * _LOG2_E,
            IEEE=query.dtype == torch.float32,
            WIDE=_is_interpreted(query),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **AS_WRITTEN,
        )
        join_splits[(num_seqs, num_kv_heads)](
            partial,
            statistics,
            output,
            query if options.sinks is None else options.sinks,
            metadata.query_starts,
            metadata.seq_lens,
            num_seqs,
            splits,
            NUM_HEADS=num_heads,
            GROUP=group,
            HEAD_DIM=head_dim,
            DIMS=triton.next_power_of_2(head_dim),
            SPLIT=self._split,
            WINDOW=options.sliding_window or 0,
            CHUNKED=options.chunked,
            SINKS=options.sinks is not None,
            ROWS=triton.next_power_of_2(group),
            **AS_WRITTEN,
        )


def _group(query: torch.Tensor, query_rope: torch.Tensor | None, kv_cache: torch.Tensor) -> int:
    """Query heads that a program computes together: those of a KV head, or some of those sharing latents."""
    num_heads = query.shape[1]
    if query_rope is None:
        return num_heads // kv_cache.shape[2]
    return max(size for size in range(1, _FEWEST_ROWS + 1) if num_heads % size == 0)


def _rope_widths(query_rope: torch.Tensor | None) -> dict[str, int]:
    width = 0 if query_rope is None else query_rope.shape[2]
    return {"ROPE": width, "ROPE_DIMS": max(_FEWEST_ROWS, triton.next_power_of_2(width))}


def tiles_of_single_rows(itemsize: int, head_dim: int, group: int) -> Tiles:
    """For elements of ``itemsize`` bytes and ``group`` query heads per KV head; small enough for chunks, too."""
    dims, rows = triton.next_power_of_2(head_dim), max(_FEWEST_ROWS, triton.next_power_of_2(group))
    if itemsize == 4:
        return Tiles(rows, 32 if dims <= 64 else 16, warps=4, stages=2)
    if dims > LARGEST_HEAD:  # of latents
        return Tiles(rows, 32, warps=4, stages=2)
    return Tiles(rows, 64, warps=4, stages=3) if dims <= 128 else Tiles(rows, 32, warps=4, stages=2)


def tiles_of_chunks(itemsize: int, head_dim: int, group: int) -> Tiles:
    """For elements of ``itemsize`` bytes: the most rows whose results stay in registers.

    Tensor cores would round float32, so it is multiplied in registers, of which masks need some, too.
    """
    dims, heads = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    if dims > LARGEST_HEAD:  # of latents
        return Tiles(32, 16, warps=8, stages=1)
    if itemsize == 4:
        many = dims <= 64 or (head_dim == dims == 128 and heads > 2)
        return Tiles(max(32 if many else 16, heads), 16, warps=4, stages=1)
    if dims <= 128:
        return Tiles(max(128, heads), 64, warps=8, stages=2)
    return Tiles(max(64, heads), 32, warps=8, stages=2)


def _is_interpreted(x: torch.Tensor) -> bool:
    """Whether kernels run under Triton's interpreter: only it takes tensors in host memory."""
    return x.device.type == "cpu"
