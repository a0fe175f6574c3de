"""Linear layers whose weights stay quantized, by the native kernels of every instruction set of this machine: right
against float64, and for each row the same bits whatever the other rows, the threads and the ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine_core.kernels.capture import BufferPool, Captured, capturing
from engine_core.kernels.library import Kernels
from engine_core.ops.base import LinearOp
from engine_core.ops.native import NativeBackend
from engine_core.ops.native_quantized import NativeQuantizedLinear
from engine_core.weights.quantized_weight import (
    FP4,
    SIGNED4,
    SIGNED5,
    SIGNED6,
    SIGNED8,
    UNSIGNED4,
    UNSIGNED5,
    UNSIGNED8,
    Offset,
    QuantFormat,
    QuantizedWeight,
)

from .experts import numbers

pytestmark = pytest.mark.usefixtures("poisoned_memory")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CURVED4 = tuple(math.tan(code / 8 - 15 / 16) for code in range(16))
"""No number of which bfloat16 has."""
FP8 = tuple(torch.arange(256).byte().view(torch.float8_e4m3fn).float().nan_to_num().tolist())
FORMATS = {
    "int4 in groups of 32": QuantFormat(SIGNED4, 32, torch.float16),
    "AWQ": QuantFormat(UNSIGNED4, 128, torch.float16, offset=Offset.ZERO),
    "Q4_K": QuantFormat(UNSIGNED4, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM),
    "Q4_1": QuantFormat(UNSIGNED4, 32, torch.float16, offset=Offset.MINIMUM),
    "MXFP4": QuantFormat(FP4, 32, torch.bfloat16),
    "int8 in rows": QuantFormat(SIGNED8, 4096, torch.float32),
    "NF4": QuantFormat(CURVED4, 64, torch.float32),
    "int8 with zeros": QuantFormat(UNSIGNED8, 48, torch.bfloat16, offset=Offset.ZERO),
    "Q6_K": QuantFormat(SIGNED6, 16, torch.float16, outer_size=256),
    "Q5_K": QuantFormat(UNSIGNED5, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM),
    "FP8 in blocks": QuantFormat(FP8, 128, torch.float32),
}
SPLIT = {name: FORMATS[name] for name in ("Q5_K", "Q6_K")} | {
    "Q5_0": QuantFormat(SIGNED5, 32, torch.float16),
    "Q5_1": QuantFormat(UNSIGNED5, 32, torch.float16, offset=Offset.MINIMUM),
    "5 bits in rows, with zeros": QuantFormat(UNSIGNED5, 4096, torch.float32, offset=Offset.ZERO),
    "6 bits in groups of 96": QuantFormat(SIGNED6, 96, torch.bfloat16),
}
"""Of 5 and 6 bits, which are kept in planes."""
SHAPES = [(96, 64), (11, 48), (257, 2064)]
"""Outputs and inputs: whole tiles and parts of them, one part of the inputs and several, a last group that is short."""


@pytest.fixture
def ops(kernels: Kernels) -> NativeBackend:
    return NativeBackend(kernels)


def weight_of(kept: QuantFormat, outputs: int, inputs: int, seed: int = 0) -> QuantizedWeight:
    random = torch.Generator().manual_seed(outputs + 1000 * seed)
    groups = -(-inputs // kept.group_size)

    def integers(low: int, high: int, width: int) -> torch.Tensor:
        return torch.randint(low, high, (outputs, width), generator=random)

    def shared(which: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Numbers of groups, and the outer ones."""
        if kept.outer_size is None:
            return numbers(outputs, groups, dtype=kept.scale_dtype, seed=which + 2 * seed, size=0.02), None
        outer_groups = -(-inputs // kept.outer_size)
        outer = numbers(outputs, outer_groups, dtype=kept.scale_dtype, seed=which + 2 * seed, size=0.001)
        return integers(-128, 128, groups).to(torch.int8), outer

    codes = integers(0, len(kept.codebook), inputs).byte()
    scales, outer_scales = shared(1)
    minima, outer_minima = shared(2) if kept.offset is Offset.MINIMUM else (None, None)
    zeros = integers(0, len(kept.codebook), groups).byte() if kept.offset is Offset.ZERO else None
    return QuantizedWeight(kept, codes, scales, outer_scales, zeros, minima, outer_minima)


def rows_of(weight: QuantizedWeight, rows: slice) -> QuantizedWeight:
    return weight.each(lambda tensor: tensor[rows])


def in_bytes(weight: QuantizedWeight) -> QuantizedWeight:
    """The same numbers, with codes of 8 bits."""
    first = weight.format.codebook[0]
    wide, zeros = (UNSIGNED8 if weight.zeros is not None else SIGNED8), weight.zeros
    codes = weight.codes + int(first - wide[0])
    return replace(weight, format=replace(weight.format, codebook=wide), codes=codes, zeros=zeros)


def make(
    ops: NativeBackend,
    weight: QuantizedWeight,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> LinearOp:
    """Its rows come in parts."""
    outputs, inputs = weight.codes.shape
    parts = (rows_of(weight, slice(first, first + 40)) for first in range(0, outputs, 40))
    linear = ops.quantized_linear(weight.format, outputs, inputs, dtype, parts, bias, order)
    assert isinstance(linear, NativeQuantizedLinear)
    return linear


def cases() -> list[object]:
    """Formats, shapes and types; all of them together only where wide tests run."""
    found: list[object] = []
    for place, (name, kept) in enumerate(FORMATS.items()):
        for n, k in SHAPES:
            for dtype in DTYPES:
                plain = dtype is torch.bfloat16 and (n, k) == SHAPES[place % 3]
                narrow = plain or ((n, k) == (11, 48) and place % 3 == 0)
                marks = () if narrow else pytest.mark.wide
                found.append(pytest.param(kept, n, k, dtype, marks=marks, id=f"{name}-{n}x{k}-{dtype}"))
    return found


@pytest.mark.parametrize(("kept", "n", "k", "dtype"), cases())
def test_product(ops: NativeBackend, kept: QuantFormat, n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = weight_of(kept, n, k), numbers(n, dtype=dtype, seed=3)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(k))
    # Products of bfloat16 have a codebook in bfloat16.
    rounded = 2**-8 if dtype is torch.bfloat16 and kept.codebook is CURVED4 else 0.0
    for permuted, added in ((False, True), (True, False)):
        linear = make(ops, weight, dtype, bias if added else None, order if permuted else None)
        expanded = weight.dequantized().double()[:, order.argsort()] if permuted else weight.dequantized().double()
        spread = (expanded.abs() + 255 * weight.dequantized().abs().max()) if kept.offset else expanded.abs()
        for rows in (1, 7, 40):
            x, beside = numbers(rows, k, dtype=dtype, seed=rows), numbers(rows, n, dtype=dtype, seed=9)
            expected = 1.5 * (x.double() @ expanded.T + (bias.double() if added else 0)) + (
                beside.double() if added else 0
            )
            magnitude = (x.double().abs() @ spread.T).max().item()
            for wanted in {dtype, torch.float32}:
                y = linear(x, residual=beside if added else None, scale=1.5, dtype=wanted)
                atol = (2**-21 + rounded) * magnitude + 1e-6
                torch.testing.assert_close(y.double(), expected, atol=atol, rtol=torch.finfo(wanted).eps)


@pytest.mark.parametrize(("kept", "n", "k", "dtype"), cases())
def test_rows_have_the_same_bits_in_every_batch(
    ops: NativeBackend, kept: QuantFormat, n: int, k: int, dtype: torch.dtype
) -> None:
    """With few rows and with many, and as columns of a wider result."""
    linear, x = make(ops, weight_of(kept, n, k), dtype), numbers(130, k, dtype=dtype, seed=1)
    torch.set_num_threads(1)
    alone = torch.cat([linear(x[row : row + 1]) for row in range(len(x))])
    for threads, rows, start in ((1, 2, 0), (2, 3, 1), (3, 5, 5), (2, 7, 1), (1, 16, 5), (2, 33, 3), (3, 130, 0)):
        torch.set_num_threads(threads)
        wide = torch.zeros(rows, n + 7, dtype=dtype)
        linear(x[start : start + rows], into=wide[:, 3 : n + 3])
        assert torch.equal(wide[:, 3 : n + 3], alone[start : start + rows]), (threads, rows, start)
        assert not wide[:, :3].any()
        assert not wide[:, n + 3 :].any()


@pytest.mark.parametrize(("kept", "n", "k", "dtype"), cases())
def test_parts_have_the_bits_of_the_whole(
    ops: NativeBackend, kept: QuantFormat, n: int, k: int, dtype: torch.dtype
) -> None:
    weight = weight_of(kept, n, k)
    whole, cuts = make(ops, weight, dtype), (slice(0, 16), slice(16, 80), slice(80, n)) if n > 80 else (slice(0, n),)
    parts = [make(ops, rows_of(weight, own), dtype) for own in cuts]
    for rows in (1, 9):
        x = numbers(rows, k, dtype=dtype, seed=rows)
        assert torch.equal(torch.cat([part(x) for part in parts], 1), whole(x))


@pytest.mark.parametrize(("kept", "n", "k", "dtype"), cases())
def test_weight_rows(ops: NativeBackend, kept: QuantFormat, n: int, k: int, dtype: torch.dtype) -> None:
    weight, order = weight_of(kept, n, k), torch.randperm(k, generator=torch.Generator().manual_seed(k))
    indices = torch.tensor([n - 1, 0, n // 2, n - 1])
    expanded = weight.dequantized()[indices].to(dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(make(ops, weight, dtype).weight_rows(indices), expanded, atol=1e-6, rtol=eps)
    permuted = make(ops, weight, dtype, order=order).weight_rows(indices)
    torch.testing.assert_close(permuted, expanded[:, order.argsort()], atol=1e-6, rtol=eps)


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_of_5_and_6_bits_have_the_bits_of_bytes(ops: NativeBackend, name: str, dtype: torch.dtype) -> None:
    """Also those that are kept in bytes, as 48 inputs do not fill a line of fifth bits."""
    for n, k in ((70, 64), (11, 48), (130, 544)):
        weight, order = weight_of(SPLIT[name], n, k), torch.randperm(k, generator=torch.Generator().manual_seed(k))
        split, whole = (make(ops, each, dtype, order=order) for each in (weight, in_bytes(weight)))
        indices = torch.tensor([n - 1, 0, n // 2])
        assert torch.equal(split.weight_rows(indices), whole.weight_rows(indices))
        assert (split.nbytes < whole.nbytes) == (k % 32 == 0 or weight.format.bits == 6)
        for rows in (1, 3, 7, 40):
            x = numbers(rows, k, dtype=dtype, seed=rows)
            assert torch.equal(split(x), whole(x)), (n, k, rows)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_argmax_is_where_products_are_greatest(ops: NativeBackend, name: str) -> None:
    kept, outputs = FORMATS[name], 1000
    head = make(ops, weight_of(kept, outputs, 48), torch.bfloat16)
    for threads, rows in ((1, 1), (3, 7), (2, 120)):
        torch.set_num_threads(threads)
        x = numbers(rows, 48, dtype=torch.bfloat16, seed=rows)
        logits = head(x, dtype=torch.float32)
        assert torch.equal(head.greatest(x).ids, logits.argmax(1))
        places, values = head.greatest(x)
        assert torch.equal(values, logits[torch.arange(rows), places])
        allowed = torch.randint(-(1 << 31), 1 << 31, (rows, -(-outputs // 32)), dtype=torch.int32)
        bits = (allowed[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :outputs].bool()
        allowed_places, of_all = head.greatest(x, allowed)
        assert torch.equal(allowed_places, logits.masked_fill(~bits, -torch.inf).argmax(1))
        assert torch.equal(of_all, values)


def test_no_row_poisons_another(ops: NativeBackend) -> None:
    linear = make(ops, weight_of(FORMATS["AWQ"], 80, 64), torch.bfloat16)
    x = numbers(9, 64, dtype=torch.bfloat16)
    clean = linear(x)
    x[3], x[7, 5] = torch.nan, torch.inf
    y, others = linear(x), [0, 1, 2, 4, 5, 6, 8]
    assert y[3].isnan().all()
    assert not y[7].isfinite().any()
    assert torch.equal(y[others], clean[others])


def test_a_captured_call_is_replayed_for_other_rows(ops: NativeBackend, kernels: Kernels) -> None:
    linear = make(ops, weight_of(FORMATS["Q4_K"], 96, 512), torch.bfloat16)
    pool = BufferPool(50)
    x, captured = pool.take(50, 512, torch.bfloat16), Captured(pool, kernels.replay)
    with capturing(captured):
        y = linear(x[:3])
    for rows, threads in ((1, 1), (50, 3), (20, 2)):
        x[:rows] = numbers(rows, 512, dtype=torch.bfloat16, seed=rows)
        captured.replay(rows=rows, num_threads=threads)
        assert torch.equal(torch.as_strided(y, (rows, 96), (96, 1)), linear(x[:rows]))


def test_a_weight_that_the_kernels_cannot_keep_is_expanded(ops: NativeBackend) -> None:
    weight, x = weight_of(QuantFormat(SIGNED4, 24, torch.float32), 32, 96), numbers(3, 96, dtype=torch.float32)
    linear = ops.quantized_linear(weight.format, 32, 96, torch.float32, [weight])
    assert not isinstance(linear, NativeQuantizedLinear)
    torch.testing.assert_close(linear(x), x @ weight.dequantized().T)
