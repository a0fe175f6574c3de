"""Products of rows with the weights of the experts that they are routed to.

A *pair* is a row and one of its experts; pairs are sorted by expert, and each expert's pairs are cut into tiles, so
that a program reads the weights of one expert. Only the device knows the number of tiles: the grid has room for the
maximum, and programs without a tile end at once. Tiles have one size, and inputs are read in ascending order, so
that a pair's result does not depend on other pairs.

Symbols: M rows, k experts of a row, E experts, P = M · k pairs, H hidden size, I inner size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_core.kernels.triton.activation import _applied

_CLAMPED_SWIGLU = tl.constexpr(4)


@triton.jit
def _product(a, b, acc, IEEE: tl.constexpr, WIDE: tl.constexpr):
    """One step of a product, as in ``linear.multiply``."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    if IEEE:
        return tl.dot(a, b, acc, input_precision="ieee")
    return tl.dot(a, b, acc)


@triton.jit
def _gated(gate, up, KIND: tl.constexpr, LIMIT: tl.constexpr, ALPHA: tl.constexpr):
    """f(gate) · up; ``KIND`` is a number of ``engine_core.activation.Activation``."""
    if KIND == _CLAMPED_SWIGLU:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        return (up + 1.0) * gate / (1.0 + tl.exp(-ALPHA * gate))
    return _applied(gate, KIND) * up


@triton.jit
def _tile(ends, ROWS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_WIDTH: tl.constexpr):
    """Expert, first pair and end of this program's tile, for the ``ends`` [E] of the experts' sorted pairs.

    Without a tile, the end is not above the first pair.
    """
    experts = tl.arange(0, EXPERTS_WIDTH)
    there = experts < EXPERTS
    end = tl.load(ends + experts, mask=there, other=0)
    start = tl.load(ends + experts - 1, mask=there & (experts > 0), other=0)
    tiles = tl.where(there, (end - start + ROWS - 1) // ROWS, 0)
    passed = (tl.cumsum(tiles, 0) <= tl.program_id(0)) & there
    expert = tl.sum(passed.to(tl.int32), 0)
    before = tl.sum(tl.where(passed, tiles, 0), 0)
    own = experts == expert
    first = tl.sum(tl.where(own, start, 0), 0) + (tl.program_id(0) - before) * ROWS
    return expert, first, tl.sum(tl.where(own, end, 0), 0)


@triton.jit
def expand_rows(
    x,
    weight,
    bias,
    order,
    ends,
    shares,
    output,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BIASED: tl.constexpr,
    WEIGHED: tl.constexpr,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (t, c): a tile [ROWS, COLUMNS] of f(gate) · up of sorted pairs, ``output`` [P, OUTPUTS].

    ``x`` is [M, INPUTS], ``weight`` [E, 2 (gate, up), OUTPUTS, INPUTS], ``bias`` [E, 2, OUTPUTS] float32, ``order`` [P]
    the pairs sorted by expert, ``ends`` as in ``_tile``. EXPERTS_WIDTH: a power of two. WEIGHED: inputs are multiplied
    by ``shares``, as in ``reduce_rows``. Not GATED: f(up), with ``weight`` [E, 1, OUTPUTS, INPUTS] and no bias.
    """
    expert, first, end = _tile(ends, ROWS, EXPERTS, EXPERTS_WIDTH)
    if first < end:
        pairs = first + tl.arange(0, ROWS)
        own = tl.load(order + tl.minimum(pairs, end - 1))
        rows = own // TOP_K
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        depth = tl.arange(0, DEPTH)
        x_places = x + rows.to(tl.int64)[:, None] * INPUTS + depth[None, :]
        first_line = expert.to(tl.int64) * (2 * OUTPUTS if GATED else OUTPUTS)
        lines = first_line + tl.minimum(columns, OUTPUTS - 1)
        gate_places = weight + lines[None, :] * INPUTS + depth[:, None]
        up_places = gate_places + OUTPUTS * INPUTS
        gate, up = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, INPUTS, DEPTH):
            inside = k + depth < INPUTS
            a = tl.load(x_places + k, mask=inside[None, :], other=0.0)
            gate = _product(a, tl.load(gate_places + k, mask=inside[:, None], other=0.0), gate, IEEE, WIDE)
            if GATED:
                up = _product(a, tl.load(up_places + k, mask=inside[:, None], other=0.0), up, IEEE, WIDE)
        if WEIGHED:
            share = tl.load(shares + own)[:, None]
            gate, up = gate * share, up * share
        if BIASED:
            gate += tl.load(bias + lines)[None, :]
            up += tl.load(bias + lines + OUTPUTS)[None, :]
        result = _gated(gate, up, KIND, LIMIT, ALPHA) if GATED else _applied(gate, KIND)
        mask = (pairs < end)[:, None] & (columns < OUTPUTS)[None, :]
        places = pairs.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
        tl.store(output + places, result.to(output.dtype.element_ty), mask=mask)


@triton.jit
def reduce_rows(
    x,
    weight,
    bias,
    order,
    ends,
    shares,
    output,
    EXPERTS: tl.constexpr,
    EXPERTS_WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BIASED: tl.constexpr,
    WEIGHED: tl.constexpr,
    IEEE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (t, c): a tile of x · Wᵀ + b of sorted pairs, stored in the order of rows; WEIGHED: times ``shares``.

    ``x`` is [P, INPUTS], sorted, ``weight`` [E, OUTPUTS, INPUTS], ``bias`` [E, OUTPUTS] float32, ``output`` and
    ``shares`` are in the order of rows, [P, OUTPUTS] and [P] float32.
    """
    expert, first, end = _tile(ends, ROWS, EXPERTS, EXPERTS_WIDTH)
    if first < end:
        pairs = first + tl.arange(0, ROWS)
        known = tl.minimum(pairs, end - 1)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        depth = tl.arange(0, DEPTH)
        x_places = x + known.to(tl.int64)[:, None] * INPUTS + depth[None, :]
        lines = expert.to(tl.int64) * OUTPUTS + tl.minimum(columns, OUTPUTS - 1)
        places = weight + lines[None, :] * INPUTS + depth[:, None]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, INPUTS, DEPTH):
            inside = k + depth < INPUTS
            a = tl.load(x_places + k, mask=inside[None, :], other=0.0)
            acc = _product(a, tl.load(places + k, mask=inside[:, None], other=0.0), acc, IEEE, WIDE)
        if BIASED:
            acc += tl.load(bias + lines)[None, :]
        own = tl.load(order + known)
        result = acc * tl.load(shares + own)[:, None] if WEIGHED else acc
        mask = (pairs < end)[:, None] & (columns < OUTPUTS)[None, :]
        to = own.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
        tl.store(output + to, result.to(output.dtype.element_ty), mask=mask)


@triton.jit
def sum_experts(
    x,
    residual,
    output,
    residual_stride,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Program (m, i): BLOCK numbers of the sum of ``x`` [M, TOP_K, SIZE] over a row's experts, first to last.

    ADDED: plus ``residual`` [M, SIZE], with rows ``residual_stride`` apart. ``output`` is [M, SIZE].
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(TOP_K):
        total += tl.load(x + (row * TOP_K + place) * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    if ADDED:
        total += tl.load(residual + row * residual_stride + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + columns, total.to(output.dtype.element_ty), mask=mask)
