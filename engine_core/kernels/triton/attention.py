"""Attention over a paged KV cache.

Keys are taken in tiles, tiles in *splits* of a fixed number of keys. Within a split, softmax is computed online
(Milakov and Gimelshein, 2018, https://arxiv.org/abs/1805.02867); splits are joined in ascending order by the same few
operations, whether one program computes all splits of its rows (``attend_chunks``) or each split has its own program
(``attend_single_rows``, then ``join_splits``, as in Flash-Decoding, 2023). So the operations that lead to a row's
result depend neither on how rows are divided into steps nor on what else is in a step.

Symbols: S sequences, T rows, G query heads per KV head. A cache is [2 (keys, values), blocks, Hkv, block size, D],
contiguous. With latents (ROPE > 0) it is [1, blocks, 1, block size, D + ROPE]: all heads share a token's entry of D
numbers, which are keys and values at once, and ROPE rotated ones, which are multiplied with ``query_rope``; a group is
then the heads that a program takes together. A sequence of length 0 is padding: nothing is read for it. Exponentials
are of base two, so ``scale`` holds a factor of log2(e), and so does SOFTCAP: scaled scores s become c · tanh(s / c);
0: unchanged. SINKS: ``sinks`` [Hq] float32 has a logit per head that takes part in the softmax and has no value.
WINDOW: the number of keys that a row sees, up to its own; 0: all. CHUNKED: a row sees those from the last multiple of
WINDOW instead. Blocks that no row of a program sees are not read: they may belong to other sequences by now.
BOTH_WAYS: a row also sees the keys before its entry of ``visible_until`` [T] int32, that is, to its picture's end.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, acc, IEEE: tl.constexpr, WIDE: tl.constexpr):
    """A · b + acc in float32. IEEE: no TF32 for float32. WIDE: float32 operands, if narrower ones cannot be used."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    if IEEE:
        return tl.dot(a, b, acc, input_precision="ieee")
    return tl.dot(a, b, acc)


@triton.jit
def _first_seen(position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """The first key that the row at ``position`` sees."""
    if WINDOW == 0:
        return position * 0
    if CHUNKED:
        return tl.maximum(position, 0) // WINDOW * WINDOW
    return tl.maximum(position - WINDOW + 1, 0)


@triton.jit
def _capped(scores, SOFTCAP: tl.constexpr):
    if SOFTCAP == 0.0:
        return scores
    x = scores / SOFTCAP
    power = tl.exp2(tl.abs(x) * -2.8853900817779268)  # e⁻²ˣ
    y = (1.0 - power) / (1.0 + power) * SOFTCAP
    return tl.where(x < 0.0, -y, y)


@triton.jit
def _share(maximum, total, sinks, heads, mask, SINKS: tl.constexpr):
    """The factor of the weighted sum of values: 1 / the sum of all weights, the sink's included."""
    if not SINKS:
        return 1.0 / tl.where(total == 0.0, 1.0, total)
    sink = tl.load(sinks + heads, mask=mask, other=0.0) * 1.4426950408889634
    highest = tl.maximum(maximum, sink)
    kept = tl.exp2(maximum - highest)
    return kept / tl.fma(total, kept, tl.exp2(sink - highest))


@triton.jit
def _rope(places, queries, used, ROPE: tl.constexpr, ROPE_DIMS: tl.constexpr):
    """The rotated parts [ROWS, ROPE_DIMS] of queries at ``places`` [ROWS, 1]; arbitrary if ROPE is 0."""
    if ROPE == 0:
        rotated = queries
    else:
        dims = tl.arange(0, ROPE_DIMS)
        rotated = tl.load(places + dims[None, :], mask=used[:, None] & (dims < ROPE)[None, :], other=0.0)
    return rotated


@triton.jit
def _attend_split(
    query,
    query_rope,
    positions,
    last_seen,
    cache,
    values_offset,
    block_stride,
    table,
    head,
    first_key,
    end_key,
    first_seen,
    scale,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Maximum, sum [ROWS] and weighted values [ROWS, DIMS] of the keys first_key … end_key − 1.

    ``last_seen`` [ROWS] is the last key that each row sees, ``first_seen`` the first that any row sees. A row that
    sees no key has maximum −inf and sum 0.
    """
    dims = tl.arange(0, DIMS)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    if WINDOW > 0:
        first_key += tl.maximum(first_seen - first_key, 0) // KEYS * KEYS  # tiles stay where they are
    for start in range(first_key, end_key, KEYS):
        keys = start + tl.arange(0, KEYS)
        present = keys < end_key
        if WINDOW > 0:
            present = present & (keys >= first_seen)
        blocks = tl.load(table + keys // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        places = blocks * block_stride + (head * BLOCK_SIZE + keys % BLOCK_SIZE) * (HEAD_DIM + ROPE)
        in_head = dims < HEAD_DIM
        scores = tl.zeros([ROWS, KEYS], tl.float32)
        if ROPE > 0:
            rope_dims = tl.arange(0, ROPE_DIMS)
            rotated = tl.load(
                cache + places[None, :] + HEAD_DIM + rope_dims[:, None],
                mask=present[None, :] & (rope_dims < ROPE)[:, None],
                other=0.0,
            )
            scores = _dot(query_rope, rotated, scores, IEEE, WIDE)
            value = tl.load(
                cache + places[:, None] + dims[None, :], mask=present[:, None] & in_head[None, :], other=0.0
            )
            key = tl.trans(value)
        else:
            key = tl.load(cache + places[None, :] + dims[:, None], mask=present[None, :] & in_head[:, None], other=0.0)
        scores = _capped(_dot(query, key, scores, IEEE, WIDE) * scale, SOFTCAP)
        seen = present[None, :] & (keys[None, :] <= last_seen[:, None])
        if WINDOW > 0:
            seen = seen & (keys[None, :] >= _first_seen(positions, WINDOW, CHUNKED)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(maximum, tl.max(scores, 1))
        # If no key was seen yet, −inf − (−inf) would be NaN.
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(maximum - shift)
        total = tl.fma(total, decay, tl.sum(weights, 1))
        if ROPE == 0:
            value = tl.load(
                cache + values_offset + places[:, None] + dims[None, :],
                mask=present[:, None] & in_head[None, :],
                other=0.0,
            )
        acc = _dot(weights.to(value.dtype), value, acc * decay[:, None], IEEE, WIDE)
        maximum = highest
    return maximum, total, acc


@triton.jit
def _joined(maximum, total, acc, next_maximum, next_total, next_acc):
    """Join two results of ``_attend_split``. Multiply-adds are explicit: a compiler must not choose what to fuse."""
    highest = tl.maximum(maximum, next_maximum)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    old, new = tl.exp2(maximum - shift), tl.exp2(next_maximum - shift)
    total = tl.fma(next_total, new, total * old)
    acc = tl.fma(next_acc, tl.broadcast_to(new[:, None], next_acc.shape), acc * old[:, None])
    return highest, total, acc


@triton.jit(do_not_specialize=["num_seqs", "table_stride"])
def attend_chunks(
    query,
    query_rope,
    output,
    cache,
    sinks,
    query_starts,
    seq_lens,
    block_tables,
    visible_until,
    num_seqs,
    query_stride,
    rope_stride,
    rope_head_stride,
    table_stride,
    values_offset,
    block_stride,
    scale,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SEQS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    BOTH_WAYS: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Sequences with several rows. Program (i, h): some rows of one sequence, all query heads of KV head h.

    A tile of queries is ROWS pairs of a position and a head of the group; tiles of sequence s begin at
    query_starts[s] // (positions of a tile) + s, which leaves room for a tile that is not full. SEQS is a power of two,
    at least ``num_seqs``. ``query`` is [T, Hq, D] with rows ``query_stride`` apart, ``output`` [T, Hq · D].
    """
    POSITIONS: tl.constexpr = ROWS // GROUP
    tile, head = tl.program_id(0), tl.program_id(1)
    seqs = tl.arange(0, SEQS)
    first_tiles = tl.load(query_starts + seqs, mask=seqs < num_seqs, other=2**30) // POSITIONS + seqs
    seq = tl.sum((first_tiles <= tile).to(tl.int32), 0) - 1
    start = tl.load(query_starts + seq)
    count = tl.load(query_starts + seq + 1) - start
    first = (tile - start // POSITIONS - seq) * POSITIONS
    if (count > 1) & (first < count):
        length = tl.load(seq_lens + seq)
        rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
        offsets, heads = first + rows // GROUP, head * GROUP + rows % GROUP
        used = (rows < POSITIONS * GROUP) & (offsets < count)
        positions = length - count + offsets
        mask = used[:, None] & (dims < HEAD_DIM)[None, :]
        lines = (start + offsets).to(tl.int64)
        queries = tl.load(
            query + lines[:, None] * query_stride + (heads * HEAD_DIM)[:, None] + dims[None, :], mask=mask, other=0.0
        )
        rope_places = query_rope + lines[:, None] * rope_stride + (heads * rope_head_stride)[:, None]
        queries_rope = _rope(rope_places, queries, used, ROPE, ROPE_DIMS)
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIMS], tl.float32)
        end = tl.minimum(length, length - count + first + POSITIONS)
        last_seen = positions
        if BOTH_WAYS:
            last_seen = tl.maximum(positions, tl.load(visible_until + lines, mask=used, other=0) - 1)
            end = tl.maximum(end, tl.max(tl.where(used, last_seen, 0), 0) + 1)
        first_seen = _first_seen(length - count + first, WINDOW, CHUNKED)
        for split in range(first_seen // SPLIT * SPLIT, end, SPLIT):
            next_maximum, next_total, next_acc = _attend_split(
                queries,
                queries_rope,
                positions,
                last_seen,
                cache,
                values_offset,
                block_stride,
                block_tables + seq.to(tl.int64) * table_stride,
                head if ROPE == 0 else 0,
                split,
                tl.minimum(split + SPLIT, end),
                first_seen,
                scale,
                HEAD_DIM,
                DIMS,
                ROPE,
                ROPE_DIMS,
                BLOCK_SIZE,
                ROWS,
                KEYS,
                WINDOW,
                CHUNKED,
                SOFTCAP,
                IEEE,
                WIDE,
            )
            maximum, total, acc = _joined(maximum, total, acc, next_maximum, next_total, next_acc)
        share = _share(maximum, total, sinks, heads, used, SINKS)
        result = (acc * share[:, None]).to(output.dtype.element_ty)
        tl.store(
            output + lines[:, None] * (NUM_HEADS * HEAD_DIM) + (heads * HEAD_DIM)[:, None] + dims[None, :],
            result,
            mask=mask,
        )


@triton.jit
def _splits_of(
    query_starts,
    seq_lens,
    num_seqs,
    SEQS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """[SEQS]: splits that the single row of each sequence sees; 0 for sequences with several rows."""
    seqs = tl.arange(0, SEQS)
    there = seqs < num_seqs
    counts = tl.load(query_starts + seqs + 1, mask=there, other=0) - tl.load(query_starts + seqs, mask=there, other=0)
    lengths = tl.load(seq_lens + seqs, mask=there & (counts == 1), other=0)
    return (lengths + SPLIT - 1) // SPLIT - _first_seen(lengths - 1, WINDOW, CHUNKED) // SPLIT


@triton.jit(do_not_specialize=["num_seqs", "most_splits", "table_stride"])
def attend_single_rows(
    query,
    query_rope,
    partial,
    statistics,
    cache,
    query_starts,
    seq_lens,
    block_tables,
    num_seqs,
    most_splits,
    query_stride,
    rope_stride,
    rope_head_stride,
    table_stride,
    values_offset,
    block_stride,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SEQS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Sequences with one row: each split of each KV head is a work item, and programs take turns at the items.

    So the number of programs is independent of lengths, which are unknown when a graph is captured. Results go to
    ``partial`` [S, most_splits, Hq, D] and ``statistics`` [2 (maximum, sum), S, most_splits, Hq], both float32.
    """
    splits = _splits_of(query_starts, seq_lens, num_seqs, SEQS, SPLIT, WINDOW, CHUNKED)
    ends = tl.cumsum(splits, 0)
    num_items = tl.sum(splits, 0) * NUM_KV_HEADS
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    mask = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        # Heads vary fastest: concurrent programs read neighboring memory.
        place, head = item // NUM_KV_HEADS, item % NUM_KV_HEADS
        before = (ends <= place).to(tl.int32)
        seq = tl.sum(before, 0)
        length = tl.load(seq_lens + seq)
        first_seen = _first_seen(length - 1, WINDOW, CHUNKED)
        split = place - tl.sum(before * splits, 0) + first_seen // SPLIT
        line = tl.load(query_starts + seq).to(tl.int64)
        heads = head * GROUP + rows
        queries = tl.load(
            query + line * query_stride + (heads * HEAD_DIM)[:, None] + dims[None, :], mask=mask, other=0.0
        )
        rope_places = query_rope + line * rope_stride + (heads * rope_head_stride)[:, None]
        maximum, total, acc = _attend_split(
            queries,
            _rope(rope_places, queries, rows < GROUP, ROPE, ROPE_DIMS),
            tl.full([ROWS], length - 1, tl.int32),
            tl.full([ROWS], length - 1, tl.int32),
            cache,
            values_offset,
            block_stride,
            block_tables + seq.to(tl.int64) * table_stride,
            head if ROPE == 0 else 0,
            split * SPLIT,
            tl.minimum(split * SPLIT + SPLIT, length),
            first_seen,
            scale,
            HEAD_DIM,
            DIMS,
            ROPE,
            ROPE_DIMS,
            BLOCK_SIZE,
            ROWS,
            KEYS,
            WINDOW,
            CHUNKED,
            SOFTCAP,
            IEEE,
            WIDE,
        )
        results = (seq.to(tl.int64) * most_splits + split) * (NUM_KV_HEADS * GROUP) + heads
        tl.store(partial + results[:, None] * HEAD_DIM + dims[None, :], acc, mask=mask)
        tl.store(statistics + results, maximum, mask=rows < GROUP)
        sums = num_seqs.to(tl.int64) * most_splits * (NUM_KV_HEADS * GROUP)
        tl.store(statistics + sums + results, total, mask=rows < GROUP)


@triton.jit(do_not_specialize=["num_seqs", "most_splits"])
def join_splits(
    partial,
    statistics,
    output,
    sinks,
    query_starts,
    seq_lens,
    num_seqs,
    most_splits,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SINKS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (s, h): join splits of KV head h's query heads, for a sequence s of one row; zeros for padding."""
    seq, head = tl.program_id(0), tl.program_id(1)
    line = tl.load(query_starts + seq)
    if tl.load(query_starts + seq + 1) - line == 1:
        rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
        heads = head * GROUP + rows
        in_group = rows < GROUP
        mask = in_group[:, None] & (dims < HEAD_DIM)[None, :]
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIMS], tl.float32)
        sums = num_seqs.to(tl.int64) * most_splits * NUM_HEADS
        length = tl.load(seq_lens + seq)
        first_split = _first_seen(tl.maximum(length - 1, 0), WINDOW, CHUNKED) // SPLIT
        for split in range(first_split, (length + SPLIT - 1) // SPLIT):
            places = (seq.to(tl.int64) * most_splits + split) * NUM_HEADS + heads
            next_acc = tl.load(partial + places[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
            next_maximum = tl.load(statistics + places, mask=in_group, other=0.0)
            next_total = tl.load(statistics + sums + places, mask=in_group, other=0.0)
            maximum, total, acc = _joined(maximum, total, acc, next_maximum, next_total, next_acc)
        result = acc * _share(maximum, total, sinks, heads, in_group, SINKS)[:, None]
        lines = line.to(tl.int64) * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
        tl.store(output + lines[:, None] + dims[None, :], result.to(output.dtype.element_ty), mask=mask)
