"""Paged attention in plain torch: the reference for other backends, and the fallback where none can be built.

Softmax is computed online (Milakov and Gimelshein, 2018, https://arxiv.org/abs/1805.02867) over tiles of keys in
ascending order, in float32. A row's bits depend on nothing but its own sequence because every matrix product has one
fixed shape, whatever the step looks like: M query rows (a *query tile*: the heads of one group at neighbouring
positions, a position always at the same place in its tile) by one tile of keys. A step only changes how many of these
products there are, and a key tile that a row may not see adds exact zeros. M is a multiple of 8: MKL may divide a
lone product among threads, and splits of other sizes were seen to round differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, KVCacheSpec

_KEYS_PER_TILE = 128
_ROWS_MULTIPLE = 8
_SCRATCH_ELEMENTS = 2**19
"""Bound on each float32 intermediate of a group, so that it stays in the processor's cache. Changes speed only."""


class TorchAttention(AttentionBackend):
    """One cache per layer: [2 (keys, values), blocks, Hkv, block size, D]."""

    @staticmethod
    def bytes_per_block(spec: KVCacheSpec) -> int:
        return 2 * spec.num_layers * spec.num_kv_heads * spec.block_size * spec.head_dim * spec.dtype.itemsize

    @staticmethod
    def allocate(spec: KVCacheSpec, num_blocks: int, device: torch.device) -> list[torch.Tensor]:
        shape = (2, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        return [torch.empty(shape, dtype=spec.dtype, device=device) for _ in range(spec.num_layers)]

    def numerics(self, spec: KVCacheSpec) -> str:
        return f"torch, tiles of {max(1, _KEYS_PER_TILE // spec.block_size) * spec.block_size} keys"

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        block_size = kv_cache.shape[3]
        blocks, offsets = metadata.slot_mapping // block_size, metadata.slot_mapping % block_size
        kv_cache[0, blocks, :, offsets] = key
        kv_cache[1, blocks, :, offsets] = value
        out = torch.empty_like(query)
        tiling = _Tiling.of(query, kv_cache)
        for group in _groups(metadata, tiling):
            out[group.rows] = _attend(query[group.rows].float() * scale, kv_cache, group, tiling).to(query.dtype)
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The fixed shapes of one model and cache."""

    heads_per_group: int
    positions: int
    """Neighbouring positions in a query tile."""
    rows: int
    """M: heads_per_group · positions, padded."""
    blocks: int
    """Cache blocks in a key tile."""
    keys: int
    """Keys in a key tile."""
    sequences_at_once: int
    """Sequences whose keys of one tile fill the scratch bound."""
    query_tiles_at_once: int
    """Query tiles whose scores (or outputs) over one key tile fill the scratch bound."""

    @staticmethod
    def of(query: torch.Tensor, kv_cache: torch.Tensor) -> _Tiling:
        num_kv_heads, block_size, head_dim = kv_cache.shape[2:]
        heads_per_group = query.shape[1] // num_kv_heads
        positions = max(1, _ROWS_MULTIPLE // heads_per_group)
        rows = -(-heads_per_group * positions // _ROWS_MULTIPLE) * _ROWS_MULTIPLE
        blocks = max(1, _KEYS_PER_TILE // block_size)
        keys = blocks * block_size
        sequences = max(1, _SCRATCH_ELEMENTS // (num_kv_heads * keys * head_dim))
        query_tiles = max(1, _SCRATCH_ELEMENTS // (num_kv_heads * rows * max(keys, head_dim)))
        return _Tiling(heads_per_group, positions, rows, blocks, keys, sequences, query_tiles)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows computed together: one row each of several sequences in ascending length, or several of one sequence."""

    rows: torch.Tensor
    """[R] rows of the step."""
    positions: torch.Tensor
    """[R] position of each row in its sequence."""
    starts: list[int]
    """Position of the first row of each sequence."""
    ends: list[int]
    """One past the position of the last row of each sequence: the keys it may see."""
    block_table: torch.Tensor
    """[sequences, ≥ blocks]; no block past ``ends`` is read."""


def _groups(metadata: AttentionMetadata, tiling: _Tiling) -> Iterator[_Group]:
    """Divide a step. Which rows end up together changes speed only."""
    starts, lens = metadata.query_starts.tolist(), metadata.seq_lens.tolist()
    device = metadata.slot_mapping.device
    single = sorted((s for s in range(len(lens)) if starts[s + 1] - starts[s] == 1), key=lens.__getitem__)
    for at in range(0, len(single), tiling.sequences_at_once):
        chosen = single[at : at + tiling.sequences_at_once]
        rows = torch.tensor([starts[s] for s in chosen], device=device)
        last = [lens[s] - 1 for s in chosen]
        table = metadata.block_tables[torch.tensor(chosen, device=device)]
        yield _Group(rows, torch.tensor(last, device=device), last, [lens[s] for s in chosen], table)
    for s, length in enumerate(lens):
        if starts[s + 1] - starts[s] > 1:
            first_row = starts[s]
            first = length - (starts[s + 1] - starts[s])
            for start in range(first, length, tiling.query_tiles_at_once * tiling.positions):
                positions = torch.arange(
                    start, min(length, start + tiling.query_tiles_at_once * tiling.positions), device=device
                )
                rows = positions + (first_row - first)
                yield _Group(rows, positions, [start], [start + len(rows)], metadata.block_tables[s : s + 1])


def _attend(query: torch.Tensor, kv_cache: torch.Tensor, group: _Group, tiling: _Tiling) -> torch.Tensor:
    """Attention output [R, Hq, D] float32 of the scaled ``query`` [R, Hq, D] float32 of one group's rows."""
    places, num_tiles = _places(group, tiling)
    tiles, visible = _query_tiles(query, places, num_tiles, group, tiling)
    ends = torch.tensor(group.ends, device=query.device)
    block_rows = _block_rows(group, kv_cache, ends, tiling)
    scratch = query.new_empty(2, len(group.ends), kv_cache.shape[2], tiling.keys, kv_cache.shape[4])
    accumulated = torch.zeros_like(tiles)
    maximum = tiles.new_full(tiles.shape[:-1], -torch.inf)
    total = torch.zeros_like(maximum)
    for first_key in range(0, max(group.ends), tiling.keys):
        seqs, tail, nearest = _reached(group, num_tiles, first_key, tiling)
        here = (seqs, slice(None), tail)
        columns = slice(first_key // tiling.keys * tiling.blocks, (first_key // tiling.keys + 1) * tiling.blocks)
        keys, values = scratch[:, seqs]
        _gather(kv_cache, block_rows[seqs, :, columns], [end - first_key for end in group.ends[seqs]], keys, values)
        scores = _products(tiles[here], keys.transpose(2, 3))
        if first_key + tiling.keys > nearest + 1:
            key_positions = torch.arange(first_key, first_key + tiling.keys, device=query.device)
            scores.masked_fill_(key_positions > visible[here].unsqueeze(-1), -torch.inf)
        highest = torch.maximum(maximum[here], scores.amax(-1))
        weights = scores.sub_(highest.unsqueeze(-1)).exp_()
        decay = torch.exp(maximum[here] - highest)
        maximum[here] = highest
        total[here] = total[here] * decay + weights.sum(-1)
        accumulated[here] = accumulated[here] * decay.unsqueeze(-1) + _products(weights, values)
    return _rows_of(accumulated / total.unsqueeze(-1), places, tiling)


def _places(group: _Group, tiling: _Tiling) -> tuple[torch.Tensor, int]:
    """Where rows lie among the positions of the query tiles of all sequences, and the number of tiles of each."""
    if len(group.ends) == len(group.rows):
        sequence = torch.arange(len(group.ends), device=group.rows.device)
        return sequence * tiling.positions + group.positions % tiling.positions, 1
    lead = group.starts[0] % tiling.positions
    places = torch.arange(lead, lead + len(group.rows), device=group.rows.device)
    return places, -(-(lead + len(group.rows)) // tiling.positions)


def _query_tiles(
    query: torch.Tensor, places: torch.Tensor, num_tiles: int, group: _Group, tiling: _Tiling
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries as tiles [S, Hkv, tiles, M, D], and the last position each row may see, [S, 1, tiles, M].

    Rows of padding are zero and see position 0.
    """
    num_seqs, (_, num_heads, head_dim) = len(group.ends), query.shape
    used = tiling.heads_per_group * tiling.positions
    padded = query.new_zeros(num_seqs * num_tiles * tiling.positions, num_heads, head_dim)
    padded[places] = query
    padded = padded.view(num_seqs, num_tiles, tiling.positions, -1, tiling.heads_per_group, head_dim)
    tiles = query.new_zeros(num_seqs, padded.shape[3], num_tiles, tiling.rows, head_dim)
    tiles[..., :used, :] = padded.permute(0, 3, 1, 2, 4, 5).flatten(3, 4)
    last = places.new_zeros(num_seqs * num_tiles * tiling.positions)
    last[places] = group.positions
    last = last.view(num_seqs, 1, num_tiles, -1).repeat_interleave(tiling.heads_per_group, dim=-1)
    return tiles, torch.nn.functional.pad(last, (0, tiling.rows - used))


def _rows_of(tiles: torch.Tensor, places: torch.Tensor, tiling: _Tiling) -> torch.Tensor:
    """The opposite of ``_query_tiles``: [R, Hq, D]."""
    num_seqs, num_kv_heads, num_tiles, _, head_dim = tiles.shape
    used = tiles[..., : tiling.heads_per_group * tiling.positions, :]
    used = used.reshape(num_seqs, num_kv_heads, num_tiles, tiling.positions, tiling.heads_per_group, head_dim)
    return used.permute(0, 2, 3, 1, 4, 5).reshape(num_seqs * num_tiles * tiling.positions, -1, head_dim)[places]


def _block_rows(group: _Group, kv_cache: torch.Tensor, ends: torch.Tensor, tiling: _Tiling) -> torch.Tensor:
    """[S, Hkv, blocks of whole key tiles]: rows of the cache seen as [blocks · Hkv, …]; 0 past ``ends``."""
    num_kv_heads, block_size = kv_cache.shape[2:4]
    num_blocks = -(-max(group.ends) // tiling.keys) * tiling.blocks
    table = group.block_table[:, :num_blocks].long()
    table = torch.nn.functional.pad(table, (0, num_blocks - table.shape[1]))
    block_starts = torch.arange(0, num_blocks * block_size, block_size, device=table.device)
    table = table.masked_fill_(block_starts >= ends[:, None], 0)
    return table[:, None, :] * num_kv_heads + torch.arange(num_kv_heads, device=table.device)[:, None]


def _reached(group: _Group, num_tiles: int, first_key: int, tiling: _Tiling) -> tuple[slice, slice, int]:
    """Which sequences and which query tiles see the key tile that begins at ``first_key``: a tail of either.

    Also the lowest position among their rows.
    """
    if len(group.ends) > 1:
        seq = next(i for i, length in enumerate(group.ends) if length > first_key)
        return slice(seq, None), slice(None), group.starts[seq]
    base = group.starts[0] // tiling.positions * tiling.positions
    tile = max(0, (first_key - base) // tiling.positions)
    return slice(None), slice(tile, None), max(group.starts[0], base + tile * tiling.positions)


def _gather(
    kv_cache: torch.Tensor, block_rows: torch.Tensor, counts: list[int], keys: torch.Tensor, values: torch.Tensor
) -> None:
    """Fill ``keys`` and ``values`` [S, Hkv, keys, D] float32 with one tile of the cache.

    From the count of each sequence on they are zero: unwritten memory may hold NaN, which masking does not silence.
    """
    for cache, out in zip(kv_cache, (keys, values), strict=True):
        found = cache.flatten(0, 1).flatten(1).index_select(0, block_rows.reshape(-1))
        out.copy_(found.view(out.shape))
        for sequence, count in enumerate(counts):
            if count < out.shape[2]:
                out[sequence, :, count:] = 0.0


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched a · b [S, Hkv, tiles, M, Y] of ``a`` [S, Hkv, tiles, M, X] and ``b`` [S, Hkv, X, Y]; S or tiles is 1."""
    num_seqs, num_kv_heads, num_tiles = a.shape[:3]
    if num_tiles == 1:
        return torch.bmm(a.flatten(0, 2), b.flatten(0, 1)).view(num_seqs, num_kv_heads, 1, a.shape[3], -1)
    out = a.new_empty(*a.shape[:4], b.shape[3])
    for head in range(num_kv_heads):
        torch.bmm(a[0, head], b[0, head].expand(num_tiles, -1, -1), out=out[0, head])
    return out
