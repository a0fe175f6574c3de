"""Ops of layers that keep a state per sequence: the short convolution, the linear recurrence, and the gated norm.

A program takes a sequence's rows in order and reads from the metadata how many there are and after which of them the
state is saved: grids depend on shapes alone, and a captured graph serves any step of its size. What leads to a row's
result has one order, whichever chunk it is in. Where sums over a row depend on the compiled code, strides are not among
what Triton specializes for: those of a single row may differ from those of several.

Symbols: S sequences, T rows, C channels, H value heads, K width of a key, V width of a value. The metadata is that of
``StateMetadata``. A source below 0 is a state of zeros; a save to a slot below 0 is left out, as in padding. A program
has read its part of the source before it writes any slot, as one of them may be the source.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_core.kernels.triton.activation import _applied


@triton.jit
def _inputs(
    x,
    gate,
    conv,
    source,
    rows,
    first,
    columns,
    mask,
    x_stride,
    gate_stride,
    CHANNELS: tl.constexpr,
    KEPT: tl.constexpr,
    GATED: tl.constexpr,
):
    """The convolution's inputs at ``rows`` and ``columns``: before row ``first`` those in the slot ``source``."""
    is_new = (rows >= first)[:, None]
    row = rows.to(tl.int64)[:, None]
    new = tl.load(x + row * x_stride + columns[None, :], mask=mask & is_new, other=0.0)
    if GATED:
        factor = tl.load(gate + row * gate_stride + columns[None, :], mask=mask & is_new, other=0.0)
        new = (new.to(tl.float32) * factor.to(tl.float32)).to(x.dtype.element_ty)
    line = source * KEPT + rows - first + KEPT
    old = tl.load(
        conv + line[:, None] * CHANNELS + columns[None, :],
        mask=mask & (rows < first)[:, None] & (source >= 0),
        other=0.0,
    )
    return tl.where(is_new, new, old.to(x.dtype.element_ty))


@triton.jit
def convolve(
    x,
    gate,
    output_gate,
    weight,
    bias,
    conv,
    output,
    query_starts,
    sources,
    save_starts,
    save_rows,
    save_slots,
    x_stride,
    gate_stride,
    output_gate_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    OUTPUT_GATED: tl.constexpr,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
):
    """Program (s, i): BLOCK channels of sequence s, ROWS rows at a time; then its saves.

    ``x``, ``gate`` and ``output_gate`` are [T, C], ``weight`` [TAPS, C] and ``bias`` [C] float32, ``conv`` [slots,
    TAPS − 1, C], ``output`` [T, C]. WIDTH: TAPS − 1, rounded up to a power of two.
    """
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (columns < CHANNELS)[None, :]
    first, end = tl.load(query_starts + sequence), tl.load(query_starts + sequence + 1)
    source = tl.load(sources + sequence).to(tl.int64)
    kept: tl.constexpr = TAPS - 1
    for start in range(first, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < end)[:, None] & there
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        for tap in tl.static_range(TAPS):
            taken = _inputs(
                x, gate, conv, source, rows + (tap - kept), first, columns, mask, x_stride, gate_stride,
                CHANNELS, kept, GATED,
            )  # fmt: skip
            factor = tl.load(weight + tap * CHANNELS + columns, mask=columns < CHANNELS, other=0.0)
            total += taken.to(tl.float32) * factor[None, :]
        if BIASED:
            total += tl.load(bias + columns, mask=columns < CHANNELS, other=0.0)[None, :]
        if SILU:
            total = _applied(total, 0)
        result, row = total.to(output.dtype.element_ty), rows.to(tl.int64)[:, None]
        if OUTPUT_GATED:
            factor = tl.load(output_gate + row * output_gate_stride + columns[None, :], mask=mask, other=0.0)
            result = (result.to(tl.float32) * factor.to(tl.float32)).to(output.dtype.element_ty)
        tl.store(output + row * CHANNELS + columns[None, :], result, mask=mask)
    places = tl.arange(0, WIDTH)
    mask = (places < kept)[:, None] & there
    for own in tl.static_range(2):  # the source, which the other saves may need, is written last
        for save in range(tl.load(save_starts + sequence), tl.load(save_starts + sequence + 1)):
            slot = tl.load(save_slots + save).to(tl.int64)
            if (slot >= 0) & ((slot == source) == (own == 1)):
                rows = tl.load(save_rows + save) + 1 - kept + places
                taken = _inputs(
                    x, gate, conv, source, rows, first, columns, mask, x_stride, gate_stride, CHANNELS, kept, GATED
                )
                tl.debug_barrier()  # a thread may write what another one reads
                place = conv + (slot * kept + places[:, None]) * CHANNELS + columns[None, :]
                tl.store(place, taken.to(conv.dtype.element_ty), mask=mask)


@triton.jit
def _softplus(x):
    """log(1 + eˣ) = max(x, 0) + 2 · artanh(z / (2 + z)), z = e^−|x|: exact to the last bits also where it is tiny."""
    z = tl.exp(-tl.abs(x))
    y = z / (2.0 + z)  # ≤ 1/3
    square = y * y
    series = square / 15.0 + 1.0 / 13.0
    series = series * square + 1.0 / 11.0
    series = series * square + 1.0 / 9.0
    series = series * square + 1.0 / 7.0
    series = series * square + 1.0 / 5.0
    series = series * square + 1.0 / 3.0
    return tl.where(x < 0.0, 0.0, x) + 2.0 * y * (series * square + 1.0)


@triton.jit(
    do_not_specialize=[
        "query_row",
        "query_head",
        "key_row",
        "key_head",
        "value_row",
        "value_head",
        "decay_row",
        "decay_head",
        "update_row",
        "update_head",
    ]
)
def advance(
    query,
    key,
    value,
    decay,
    update,
    rates,
    biases,
    skips,
    recurrent,
    output,
    query_starts,
    sources,
    save_starts,
    save_rows,
    save_slots,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    decay_row,
    decay_head,
    update_row,
    update_head,
    query_scale,
    epsilon,
    least_step,
    most_step,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    DELTA: tl.constexpr,
    NORMALIZED: tl.constexpr,
    SKIPPED: tl.constexpr,
):
    """Program (s, h, i): VALUES columns of head h's state, over the rows of sequence s, in float32.

    What is computed, and ``rates``, ``biases`` and ``skips`` [H]: ``RecurrenceParameters``. DELTA: the gated delta
    rule, else Mamba-2. ``query`` and ``key`` are [T, H / SHARED, K], ``value`` [T, H, V], ``decay`` and ``update``
    [T, H], all with the strides of their rows and heads; ``recurrent`` is [slots, H, K, V], ``output`` [T, H, V]. KEYS
    and VALUES: powers of two, the first at least K. Rows after the last save are not computed.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    keys, values = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    in_key, in_value = keys < KEY_DIM, values < VALUE_DIM
    mask = in_key[:, None] & in_value[None, :]
    source = tl.load(sources + sequence).to(tl.int64)
    places = recurrent + head * (KEY_DIM * VALUE_DIM) + keys[:, None] * VALUE_DIM + values[None, :]
    size: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    state = tl.load(places + source * size, mask=mask & (source >= 0), other=0.0)
    tl.debug_barrier()  # a thread may write what another one reads
    rate, bias, skip = tl.load(rates + head), tl.load(biases + head), tl.load(skips + head)
    start = tl.load(query_starts + sequence).to(tl.int64)
    for save in range(tl.load(save_starts + sequence), tl.load(save_starts + sequence + 1)):
        end = tl.load(save_rows + save).to(tl.int64) + 1
        for row in range(start, end):
            q = tl.load(query + row * query_row + head // SHARED * query_head + keys, mask=in_key, other=0.0)
            k = tl.load(key + row * key_row + head // SHARED * key_head + keys, mask=in_key, other=0.0)
            v = tl.load(value + row * value_row + head * value_head + values, mask=in_value, other=0.0)
            q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
            if NORMALIZED:
                q *= 1.0 / tl.sqrt(tl.sum(q * q, 0) + epsilon)
                k *= 1.0 / tl.sqrt(tl.sum(k * k, 0) + epsilon)
            q *= query_scale
            step = _softplus(tl.load(decay + row * decay_row + head * decay_head).to(tl.float32) + bias)
            step = tl.where(step < least_step, least_step, step)  # NaN stays NaN
            step = tl.where(step > most_step, most_step, step)
            state *= tl.exp(step * rate)
            if DELTA:
                share = tl.load(update + row * update_row + head * update_head).to(tl.float32)
                added = (v - tl.sum(k[:, None] * state, 0)) / (1.0 + tl.exp(-share))
            else:
                added = step * v
            state = tl.fma(k[:, None], added[None, :], state)
            result = tl.sum(q[:, None] * state, 0)
            if SKIPPED:
                result += skip * v
            line = output + (row * HEADS + head) * VALUE_DIM
            tl.store(line + values, result.to(output.dtype.element_ty), mask=in_value)
        start = end
        slot = tl.load(save_slots + save).to(tl.int64)
        if slot >= 0:
            tl.store(places + slot * size, state, mask=mask)


@triton.jit(do_not_specialize=["x_row", "x_group", "gate_row", "gate_group"])
def normalize_gated(
    x,
    gate,
    weight,
    output,
    x_row,
    x_group,
    gate_row,
    gate_group,
    weight_group,
    epsilon,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    GATE_LAST: tl.constexpr,
):
    """Program (t, n): group n of row t of ``x`` [T, GROUPS, SIZE], divided by its root mean square, times ``weight``.

    SiLU of ``gate`` [T, GROUPS, SIZE] multiplies the result (GATE_LAST) or ``x``. The mean is over WIDTH numbers, the
    others being zeros. ``weight`` is float32, and ``output`` [T, GROUPS, SIZE]; BLOCK: a power of two.
    """
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    y = tl.load(x + row * x_row + group * x_group + columns, mask=mask, other=0.0).to(tl.float32)
    gates = tl.load(gate + row * gate_row + group * gate_group + columns, mask=mask, other=0.0).to(tl.float32)
    gates = _applied(gates, 0)
    if not GATE_LAST:
        y *= gates
    y *= 1.0 / tl.sqrt(tl.sum(y * y, 0) / WIDTH + epsilon)
    y *= tl.load(weight + group * weight_group + columns, mask=mask, other=0.0)
    if GATE_LAST:
        y *= gates
    tl.store(output + (row * GROUPS + group) * SIZE + columns, y.to(output.dtype.element_ty), mask=mask)
