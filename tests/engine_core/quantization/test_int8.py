"""8-bit linear layers, for every instruction set of this machine: right, exact where they promise it, and for each row
the same bits whatever the other rows, the threads and the instruction set.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.activation import Activation
from engine_core.errors import UnsupportedModelError
from engine_core.kernels import memory
from engine_core.kernels.library import Kernels, load_int8_kernels
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.int8 import Int8, Int8Linear
from engine_core.quantization.int8_packing import MOST_INPUTS, Int8Weights
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.features import Features, LinearShape

pytestmark = pytest.mark.usefixtures("poisoned_memory")
KERNELS = load_int8_kernels()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(96, 64), (257, 2048), (160, 3001), (1, 1), (33, 66)]


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [M, K] as float64 integers up to 127, and their scales [M, 1] float32: an implementation in torch alone."""
    magnitudes = x.float().abs().amax(1, keepdim=True)
    factors = torch.full_like(magnitudes, 127.0) / magnitudes
    return (x.float() * factors).round().double(), magnitudes / torch.full_like(magnitudes, 127.0)


def expected_bits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """What the layer computes, step for step: integers are exact in float64."""
    (integers, scales), (weights, channel_scales) = rounded(x), rounded(weight)
    y = (integers @ weights.T).float() * channel_scales.T * scales
    return (y if bias is None else y + bias.float()).to(dtype)


def held_bytes(weights: Int8Weights) -> int:
    return sum(value.untyped_storage().nbytes() for value in vars(weights).values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_bits_are_those_of_the_arithmetic_in_torch(int8_kernels: Kernels, dtype: torch.dtype, with_bias: bool) -> None:
    for n, k in SHAPES:
        weight, bias = random((n, k), dtype, n), random((n,), dtype, k) if with_bias else None
        layer = Int8Linear(weight, bias, int8_kernels)
        for rows in (1, 2, 11, 13, 30):
            x = random((rows, k), dtype, rows)
            assert torch.equal(layer(x), expected_bits(x, weight, bias, dtype)), (n, k, rows)
        logits = layer(x, dtype=torch.float32)
        assert logits.dtype == torch.float32
        assert torch.equal(logits, expected_bits(x, weight, bias, torch.float32))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 120), n=st.integers(1, 130), k=st.integers(1, 300), dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**20), spread=st.sampled_from([1e-6, 1.0, 1e3]),
)  # fmt: skip
def test_error_is_bounded_by_half_a_step_of_each_number(
    rows: int, n: int, k: int, dtype: torch.dtype, seed: int, spread: float
) -> None:
    """Against the product in float64: rounding x by at most sx/2 and w by at most sw/2, and the result once."""
    x, weight = random((rows, k), torch.float32, seed) * spread, random((n, k), dtype, seed + 1)
    y = Int8Linear(weight, None, KERNELS)(x)
    exact = x.double() @ weight.double().T
    x_step = x.double().abs().amax(1, keepdim=True) / 127
    w_step = weight.double().abs().amax(1, keepdim=True) / 127
    bound = (
        x.double().abs().sum(1, keepdim=True) * w_step.T / 2
        + x_step / 2 * weight.double().abs().sum(1)
        + k * x_step * w_step.T / 4
    )
    assert ((y.double() - exact).abs() <= bound * (1 + 1e-4)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    n, k = 2100, 520  # enough for threads to share both rounding and products
    layer = Int8Linear(random((n, k), dtype, 1), random((n,), dtype, 2), KERNELS)
    x = random((210, k), dtype, 3)
    torch.set_num_threads(1)
    alone = torch.cat([layer(x[row : row + 1]) for row in range(len(x))])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (*range(1, 27), 96, 97, 200):
            start = 7 * rows % (len(x) - rows + 1)
            assert torch.equal(layer(x[start : start + rows]), alone[start : start + rows]), (threads, rows, start)


def test_largest_numbers_everywhere_do_not_saturate(int8_kernels: Kernels) -> None:
    """Instructions that add pairs of products in 16 bits would: 2 · 127 · 127 is what they can just hold."""
    k = 4096
    for sign_x in (1.0, -1.0):
        for sign_w in (1.0, -1.0):
            layer = Int8Linear(torch.full((32, k), sign_w), None, int8_kernels)
            y = layer(torch.full((2, k), sign_x))
            torch.testing.assert_close(y, torch.full((2, 32), sign_x * sign_w * k), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_numbers_stay_alone(int8_kernels: Kernels, dtype: torch.dtype) -> None:
    layer = Int8Linear(random((40, 70), dtype, 1), random((40,), dtype, 2), int8_kernels)
    x = random((16, 70), dtype, 3)
    clean = layer(x)
    for place, value in ((3, torch.inf), (69, -torch.inf), (64, torch.nan)):  # in whole vectors and behind them
        spoiled = x.clone()
        spoiled[5, place] = value
        y = layer(spoiled)
        assert y[5].isnan().all()
        assert torch.equal(y[torch.arange(16) != 5], clean[torch.arange(16) != 5])


def test_zero_and_tiny_rows_and_channels(int8_kernels: Kernels) -> None:
    weight, bias = random((40, 70), torch.float32, 1), random((40,), torch.float32, 2)
    weight[7] = 0.0
    weight[8] = 1e-38
    layer = Int8Linear(weight, bias, int8_kernels)
    y = layer(torch.stack([torch.zeros(70), torch.full((70,), 1e-40), torch.ones(70)]))
    assert torch.equal(y[0], bias)
    assert torch.equal(y[1], bias)
    assert torch.equal(y[2, 7:9], bias[7:9])
    assert not torch.equal(y[2, :7], bias[:7])


def test_a_channel_that_is_not_numbers_stays_alone(int8_kernels: Kernels) -> None:
    weight, x = random((40, 70), torch.float32, 1), random((3, 70), torch.float32, 2)
    clean = Int8Linear(weight, None, int8_kernels)(x)
    weight[9, 68] = torch.nan
    weight[33, 1] = torch.inf
    y = Int8Linear(weight, None, int8_kernels)(x)
    spoiled = torch.tensor([9, 33])
    assert y[:, spoiled].isnan().all()
    rest = torch.ones(40, dtype=torch.bool).index_fill(0, spoiled, False)
    assert torch.equal(y[:, rest], clean[:, rest])


def test_weights_are_not_changed_and_not_kept() -> None:
    weight = random((257, 66), torch.float32, 1)
    before = weight.clone()
    layer = Int8Linear(weight, None, KERNELS)
    assert torch.equal(weight, before)
    x = random((3, 66), torch.float32, 2)
    y = layer(x)
    weight.fill_(torch.nan)
    assert torch.equal(layer(x), y)


def test_inputs_whose_rows_lie_apart() -> None:
    layer = Int8Linear(random((64, 48), torch.bfloat16, 1), None, KERNELS)
    wide = random((5, 100), torch.bfloat16, 2)
    assert torch.equal(layer(wide[:, 20:68]), layer(wide[:, 20:68].clone()))
    across = random((48, 5), torch.bfloat16, 3).T
    assert torch.equal(layer(across), layer(across.contiguous()))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_memory_is_what_was_told_before(n: int, k: int) -> None:
    layer = Int8Linear(random((n, k), torch.bfloat16, 1), None, KERNELS)
    held = held_bytes(layer._weights)
    shape = LinearShape.of("x", Features(1, k), Features(1, n))
    assert layer.nbytes == Int8(None).weight_bytes(shape, 2) == held


def test_only_the_packed_weight_is_kept_in_huge_pages() -> None:
    layer = Int8Linear(random((2048, 1024), torch.bfloat16, 1), None, KERNELS)
    assert layer._weights.weight.nbytes == 2048 * 1024
    assert layer._weights.weight.data_ptr() % memory._HUGE_PAGE == 0


def test_rows_of_the_weight_are_read_as_they_were_rounded() -> None:
    table = random((131, 67), torch.bfloat16, 1)
    head = Int8Linear(table, None, KERNELS)
    ids = torch.tensor([130, 0, 31, 32, 31])
    integers, scales = rounded(table)
    assert torch.equal(head.weight_rows(ids), (integers.float() * scales)[ids].to(torch.bfloat16))


def test_a_layer_too_wide_to_sum_is_refused() -> None:
    """Before any weight is read, by its name."""
    shape = LinearShape.of("x.down_proj", Features(1, MOST_INPUTS + 1), Features(1, 1))
    refused = "x.down_proj has 131073 inputs, and 8 bits allow at most 131072: leave out --quantization int8$"
    with pytest.raises(UnsupportedModelError, match=refused):
        Int8(KERNELS).tensors(shape)
    experts = ExpertsShape(2, 1, 16, MOST_INPUTS + 1, Activation.SILU)
    with pytest.raises(UnsupportedModelError, match="down projection of experts has 131088 inputs"):
        Int8(KERNELS).experts(experts, torch.float32, TorchBackend())
