"""Layers of integer codes that round their inputs, for every instruction set of this machine: the bits that
cpu/quantized/int8_activations_multiply.h promises, whatever the other rows, the threads and the instruction set.
"""

from __future__ import annotations

import pytest
import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import Kernels, load_int8_kernels, load_kernels
from engine_core.ops.base import LinearOp
from engine_core.ops.int8_activations import Int8Activations, Int8ActivationsLinear, has_integer_codes
from engine_core.ops.native import NativeBackend
from engine_core.quantization.int4 import CODEBOOK
from engine_core.weights.quantized_weight import FP4, SIGNED4, SIGNED8, UNSIGNED8, Offset, QuantFormat, QuantizedWeight

from .experts import numbers
from .test_native_quantized import DTYPES, FORMATS, SPLIT, in_bytes, weight_of

pytestmark = pytest.mark.usefixtures("poisoned_memory")
SHAPES = [(96, 64), (11, 48), (130, 560)]
"""Outputs and inputs: whole tiles and parts of them, a last group that is short."""
INTEGER_FORMATS = {name: kept for name, kept in FORMATS.items() if has_integer_codes(kept)} | {
    "int4": QuantFormat(CODEBOOK, 32, torch.bfloat16, outer_size=256, offset=Offset.MINIMUM),
    "halves with minima": QuantFormat(FP4, 32, torch.float16, offset=Offset.MINIMUM),
    "Q8_0": QuantFormat(SIGNED8, 32, torch.float16),
    "bytes with minima": QuantFormat(UNSIGNED8, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM),
    "groups of 192": QuantFormat(SIGNED4, 192, torch.bfloat16),
    "groups of 256": QuantFormat(UNSIGNED8, 256, torch.float16, offset=Offset.ZERO),
}


def make(
    kernels: Kernels,
    weight: QuantizedWeight,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> LinearOp:
    ops = NativeBackend(load_kernels(), Int8Activations(kernels))
    outputs, inputs = weight.codes.shape
    linear = ops.quantized_linear(weight.format, outputs, inputs, dtype, [weight], bias, order)
    assert isinstance(linear, Int8ActivationsLinear)
    return linear


def block_size(kept: QuantFormat, inputs: int) -> int:
    """Inputs with one scale, at most 128: some groups, or equal parts of one or of those of an outer scale."""
    size = kept.group_size
    if size > 128:
        return 128 if size >= inputs else next(part for part in range(128, 0, -16) if size % part == 0)
    return next(some for some in range(128, 0, -1) if some % size == 0 and (kept.outer_size or some) % some == 0)


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a · b + c, all float32, rounded once: float64 has the exact product."""
    return (a.double() * b.double() + c.double()).float()


def scaled(
    weight: QuantizedWeight,
    own: torch.Tensor,
    outer: torch.Tensor | None,
    first: int,
    sums: list[torch.Tensor],
    total: torch.Tensor,
) -> torch.Tensor:
    """The total of a block that begins with input ``first``, plus its parts' sums times these scales or minima."""
    group = first // weight.format.group_size
    if outer is None:
        for place, part in enumerate(sums):
            total = fused(part.float(), own[:, group + place].float(), total)
        return total
    integers = sum(part * own[:, group + place].double() for place, part in enumerate(sums))
    assert isinstance(integers, torch.Tensor)
    assert weight.format.outer_size is not None
    return fused(integers.float(), outer[:, first // weight.format.outer_size].float(), total)


def expected(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """What the layer computes, step for step: integers are exact in float64."""
    kept, inputs = weight.format, x.shape[1]
    unit = 1.0 if all(number.is_integer() for number in kept.codebook) else 0.5
    integers = (torch.tensor(kept.codebook) / unit)[weight.codes.int()]
    if weight.zeros is not None:
        integers -= weight._of_inputs(weight.zeros.float())
    y = torch.zeros(len(x), len(weight.codes))
    size = block_size(kept, inputs)
    for first in range(0, inputs, size):
        block = x[:, first : first + size].float()
        greatest = block.abs().amax(1, keepdim=True)
        is_zero = greatest < 1e-30
        factors = (torch.full_like(greatest, 127) / greatest).masked_fill(is_zero, 0)
        x_scales = (greatest / torch.full_like(greatest, 127)).masked_fill(is_zero, 0)
        rounded = (block * factors).round().double()
        sums, sums_of_inputs = [], []
        for part in range(0, block.shape[1], kept.group_size):
            some = slice(part, part + kept.group_size)
            sums.append(rounded[:, some] @ integers[:, first:][:, some][:, : block.shape[1] - part].T.double())
            sums_of_inputs.append(rounded[:, some].sum(1, keepdim=True) / unit)
        total = scaled(weight, weight.scales, weight.outer_scales, first, sums, torch.zeros_like(y))
        if weight.minima is not None:
            total = scaled(weight, weight.minima, weight.outer_minima, first, sums_of_inputs, total)
        y = fused(total, unit * x_scales, y)
    return y if bias is None else y + bias.float()


@pytest.mark.parametrize("name", INTEGER_FORMATS)
def test_bits_are_those_of_the_arithmetic_in_torch(int8_kernels: Kernels, name: str) -> None:
    kept = INTEGER_FORMATS[name]
    place = list(INTEGER_FORMATS).index(name)
    (n, k), dtype = SHAPES[place % 3], DTYPES[place % 2]
    weight, bias = weight_of(kept, n, k), numbers(n, dtype=dtype, seed=3)
    layer = make(int8_kernels, weight, dtype, bias)
    for rows in (1, 2, 7, 10, 25):
        x = numbers(rows, k, dtype=dtype, seed=rows)
        right = expected(x, weight, bias)
        assert torch.equal(layer(x, dtype=torch.float32), right), rows
        assert torch.equal(layer(x), right.to(dtype)), rows
        assert torch.equal(layer.greatest(x).ids, right.argmax(1))


@pytest.mark.parametrize("name", SPLIT)
def test_codes_of_5_and_6_bits_have_the_bits_of_bytes(int8_kernels: Kernels, name: str) -> None:
    for n, k in ((70, 64), (11, 48), (130, 544)):
        weight = weight_of(SPLIT[name], n, k)
        split, whole = (make(int8_kernels, each, torch.bfloat16) for each in (weight, in_bytes(weight)))
        assert (split.nbytes < whole.nbytes) == (k % 32 == 0 or weight.format.bits == 6)
        for rows in (1, 3, 4, 9, 40):
            x = numbers(rows, k, dtype=torch.bfloat16, seed=rows)
            assert torch.equal(split(x, dtype=torch.float32), whole(x, dtype=torch.float32)), (n, k, rows)


@pytest.mark.parametrize(("group_size", "k"), [(32, 16), (64, 48), (128, 96), (128, 112), (128, 208)])
@pytest.mark.parametrize("outer_size", [None, 256])
def test_groups_that_are_not_full(int8_kernels: Kernels, group_size: int, k: int, outer_size: int | None) -> None:
    """The only one, or the last."""
    weight = weight_of(QuantFormat(CODEBOOK, group_size, torch.bfloat16, outer_size, Offset.MINIMUM), 70, k)
    layer, x = make(int8_kernels, weight, torch.bfloat16), numbers(11, k, dtype=torch.bfloat16, seed=1)
    assert torch.equal(layer(x, dtype=torch.float32), expected(x, weight, None))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    kernels = load_int8_kernels()
    layer = make(kernels, weight_of(FORMATS["Q4_K"], 700, 512), dtype, numbers(700, dtype=dtype, seed=1))
    x, residual = numbers(210, 512, dtype=dtype, seed=2), numbers(210, 700, dtype=dtype, seed=3)
    torch.set_num_threads(1)
    alone = torch.cat([layer(x[row : row + 1], residual=residual[row : row + 1], scale=0.5) for row in range(len(x))])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (2, 9, 11, 31, 96, 210):
            some = slice(7 * rows % (len(x) - rows + 1), 7 * rows % (len(x) - rows + 1) + rows)
            assert torch.equal(layer(x[some], residual=residual[some], scale=0.5), alone[some]), (threads, rows)


def test_largest_numbers_everywhere_do_not_saturate(int8_kernels: Kernels) -> None:
    others = [QuantFormat(UNSIGNED8[:count], 128, torch.float32) for count in (32, 64, 256)]
    for kept in (FORMATS["AWQ"], *others):
        code = len(kept.codebook) - 1
        weight = QuantizedWeight(
            kept,
            torch.full((64, 512), code, dtype=torch.uint8),
            torch.ones(64, 4, dtype=kept.scale_dtype),
            zeros=torch.zeros(64, 4, dtype=torch.uint8) if kept.offset is Offset.ZERO else None,
        )
        for sign in (1.0, -1.0):
            y = make(int8_kernels, weight, torch.float32)(torch.full((3, 512), sign))
            torch.testing.assert_close(y, torch.full((3, 64), sign * code * 512), rtol=1e-6, atol=0)


def test_rows_that_are_not_numbers_stay_alone(int8_kernels: Kernels) -> None:
    layer = make(int8_kernels, weight_of(FORMATS["Q4_1"], 70, 96), torch.bfloat16)
    x = numbers(12, 96, dtype=torch.bfloat16, seed=1)
    x[7, :32] = 0  # a block of zeros has a scale of zero
    clean = layer(x)
    assert clean.isfinite().all()
    others = torch.arange(12) != 5
    for place, value in ((3, torch.inf), (95, -torch.inf), (64, torch.nan)):
        spoiled = x.clone()
        spoiled[5, place] = value
        y = layer(spoiled)
        assert y[5].isnan().all()
        assert torch.equal(y[others], clean[others])


def test_inputs_in_another_order(int8_kernels: Kernels) -> None:
    weight, x = weight_of(FORMATS["AWQ"], 40, 256), numbers(5, 256, dtype=torch.float16, seed=1)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    layer = make(int8_kernels, weight, torch.float16, order=order)
    assert torch.equal(layer(x, dtype=torch.float32), expected(x[:, order], weight, None))


def test_codes_that_are_not_integers_keep_their_inputs() -> None:
    assert has_integer_codes(QuantFormat(FP4, 32, torch.bfloat16))
    assert not has_integer_codes(QuantFormat(FP4, 32, torch.bfloat16, offset=Offset.ZERO))
    assert not has_integer_codes(FORMATS["NF4"])
    assert not has_integer_codes(FORMATS["FP8 in blocks"])
    ops = NativeBackend(load_kernels(), Int8Activations(load_int8_kernels()))
    linear = ops.quantized_linear(FORMATS["NF4"], 64, 64, torch.bfloat16, [weight_of(FORMATS["NF4"], 64, 64)])
    assert not isinstance(linear, Int8ActivationsLinear)
    with pytest.raises(ConfigError, match="int8_activations=True is not usable: expected False, because no layer"):
        ops.describe_layers()
    ops.quantized_linear(FORMATS["Q4_1"], 64, 64, torch.bfloat16, [weight_of(FORMATS["Q4_1"], 64, 64)])
    assert ops.describe_layers() == "inputs of 1 layers rounded to 8 bits, those of 1 others kept"
