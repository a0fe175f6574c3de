"""What adapters add to the rows of a layer's outputs: y += scale · (scales · (x · Aᵀ)) · Bᵀ, each row by its adapter.

``shrink`` makes the inner products, ``expand`` what is added. Rows are sorted by adapter, and each adapter's are cut
into tiles of one size, so that a program reads the weights of one adapter. Inputs of a product are read in ascending
order, and nothing is split: so the same instructions lead to a row's result whatever is beside it. Programs take turns
at as many tiles as memory says, so that a captured launch follows the adapters of each step.

Kernels read three tables of 64-bit integers, which hold addresses and numbers:

- ``tiles`` [T, 3]: the address of an adapter's layers, and the first and the end of the tile's ``rows``, all sorted;
- an adapter's layers [layers, 6]: the addresses of A [G or 1, R, K], of the scales [R] float32 and of pieces, and
  R, the number of pieces, and how far the groups of A are apart, in numbers; an untouched layer has zeros;
- a layer's pieces [P, 6]: the address of B [G or 1, columns, ranks], how far its groups are apart, the first column,
  columns, the first rank, and ranks. Columns follow each other.

Ranks are multiples of RANKS, which is one of 16: those that fill them up are zeros. Symbols: G groups of layers side by
side, R all ranks of an adapter's layer, K inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

_TILE, _LAYER, _PIECE = tl.constexpr(3), tl.constexpr(6), tl.constexpr(6)
"""Numbers of an entry of each table."""


@triton.jit
def _sixteens(place):
    """What memory says there, a multiple of 16: numbers behind it can be read in vectors."""
    return tl.multiple_of(tl.load(place), 16)


@triton.jit
def _matrix(place, TYPE: tl.constexpr):
    """A pointer of TYPE to what begins at the address that memory has there, a multiple of 16."""
    return tl.multiple_of(tl.load(place).to(TYPE), 16)


@triton.jit
def _tile(tiles, rows, tile, layer, ROWS: tl.constexpr):
    """The adapter's layer, places among sorted rows [ROWS], which of them are of the tile, and their rows.

    Places beyond the last repeat it: they are computed, but not stored.
    """
    entry = tiles + tile * _TILE
    layers = tl.load(entry).to(tiles.dtype)
    end = tl.load(entry + 2)
    places = tl.load(entry + 1) + tl.arange(0, ROWS)
    known = tl.minimum(places, end - 1)
    return layers + layer * _LAYER, known, places < end, tl.load(rows + known).to(tl.int64)


@triton.jit(do_not_specialize=["layer"])
def shrink(
    x,
    inner,
    tiles,
    num_tiles,
    rows,
    layer,
    x_stride,
    x_group_stride,
    inner_stride,
    inner_group_stride,
    GROUPS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    DEPTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write scales · (x · Aᵀ) of sorted rows to ``inner`` [sorted rows, GROUPS, R] float32.

    ``x`` is [rows, GROUPS, INPUTS]; strides are in numbers. ``num_tiles`` [1] int32, ``rows`` int32. TOGETHER: programs
    that divide the ranks of a tile, RANKS at a time. IEEE and WIDE: as in ``linear.multiply``.
    """
    depth, lines = tl.arange(0, DEPTH), tl.arange(0, RANKS)
    for item in range(tl.program_id(0), tl.load(num_tiles) * (GROUPS * TOGETHER), tl.num_programs(0)):
        group, first = item // TOGETHER % GROUPS, item % TOGETHER * RANKS
        entry, places, there, own = _tile(tiles, rows, item // (GROUPS * TOGETHER), layer, ROWS)
        ranks = tl.load(entry + 3).to(tl.int32)
        a_first = _matrix(entry, x.dtype) + group * _sixteens(entry + 5)
        scales = _matrix(entry + 1, inner.dtype)
        x_places = x + own[:, None] * x_stride + group * x_group_stride + depth[None, :]
        for rank in range(first, ranks, RANKS * TOGETHER):
            a_places = a_first + (rank + lines)[None, :] * INPUTS + depth[:, None]
            acc = tl.zeros([ROWS, RANKS], tl.float32)
            for k in range(0, INPUTS, DEPTH):
                if INPUTS % DEPTH == 0:
                    given, weight = tl.load(x_places + k), tl.load(a_places + k)
                else:
                    given = tl.load(x_places + k, mask=(k + depth < INPUTS)[None, :], other=0.0)
                    weight = tl.load(a_places + k, mask=(k + depth < INPUTS)[:, None], other=0.0)
                if WIDE:
                    acc = tl.dot(given.to(tl.float32), weight.to(tl.float32), acc, input_precision="ieee")
                elif IEEE:
                    acc = tl.dot(given, weight, acc, input_precision="ieee")
                else:
                    acc = tl.dot(given, weight, acc)
            acc *= tl.load(scales + rank + lines)[None, :]
            to = inner + places[:, None] * inner_stride + group * inner_group_stride + (rank + lines)[None, :]
            tl.store(to, acc, mask=there[:, None])


@triton.jit(do_not_specialize=["layer", "together"])
def expand(
    inner,
    weights,
    output,
    tiles,
    num_tiles,
    rows,
    layer,
    inner_stride,
    inner_group_stride,
    output_stride,
    output_group_stride,
    scale,
    together,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IEEE: tl.constexpr,
):
    """Add scale · inner · Bᵀ to ``output`` [rows, GROUPS, columns], rounded once; ``inner`` is what ``shrink`` made.

    ``weights``: any tensor of the type of B. ``together`` programs divide the pieces of a tile, each of at most COLUMNS
    columns. IEEE: no TF32, in which B of a 16-bit type is exact, and ``inner`` is rounded to 11 bits.
    """
    lines, few = tl.arange(0, COLUMNS), tl.arange(0, RANKS)
    for item in range(tl.program_id(0), tl.load(num_tiles) * (GROUPS * together), tl.num_programs(0)):
        group, first = item // together % GROUPS, item % together
        entry, places, there, own = _tile(tiles, rows, item // (GROUPS * together), layer, ROWS)
        pieces, count = tl.load(entry + 2).to(tiles.dtype), tl.load(entry + 4).to(tl.int32)
        inner_places = inner + places[:, None] * inner_stride + group * inner_group_stride + few[None, :]
        for number in range(first, count, together):
            piece = pieces + number * _PIECE
            column, columns = tl.load(piece + 2), tl.load(piece + 3).to(tl.int32)
            rank, ranks = _sixteens(piece + 4), _sixteens(piece + 5).to(tl.int32)
            b_first = _matrix(piece, weights.dtype) + group * _sixteens(piece + 1)
            b_places = b_first + tl.minimum(lines, columns - 1)[None, :] * ranks + few[:, None]
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            for r in range(0, ranks, RANKS):
                factors, weight = tl.load(inner_places + rank + r), tl.load(b_places + r).to(tl.float32)
                if IEEE:
                    acc = tl.dot(factors, weight, acc, input_precision="ieee")
                else:
                    acc = tl.dot(factors, weight, acc, input_precision="tf32")
            mask = there[:, None] & (lines < columns)[None, :]
            to = output + own[:, None] * output_stride + group * output_group_stride + (column + lines)[None, :]
            total = tl.load(to, mask=mask, other=0.0).to(tl.float32) + acc * scale
            tl.store(to, total.to(output.dtype.element_ty), mask=mask)
