"""Packed products: right, and for each row the same bits whatever the other rows and the threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine_core.layers import linear
from engine_core.layers.linear import Linear, packed_dtype, padded_rows

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(96, 64), (257, 2048), (160, 3000), (11, 40)]


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_linear(n: int, k: int, dtype: torch.dtype, bias: bool) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n + k)
    weight = torch.randn(n, k, generator=generator).to(dtype)
    offset = torch.randn(n, generator=generator).to(dtype)
    return (
        Linear(weight, offset if bias else None),
        weight.double(),
        offset.double() if bias else torch.zeros(n).double(),
    )


def check_close(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor) -> None:
    """As near as summing in float32 and rounding once can be."""
    magnitude = (x.double().abs() @ weight.abs().T).max().item()
    expected = x.double() @ weight.T + offset
    rounding = torch.finfo(y.dtype).eps
    torch.testing.assert_close(y.double(), expected, atol=2**-23 * magnitude, rtol=rounding)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_product(n: int, k: int, dtype: torch.dtype, bias: bool) -> None:
    layer, weight, offset = random_linear(n, k, dtype, bias)
    for rows in (1, 2, 7):
        x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(dtype)
        y = layer(x)
        assert y.shape == (rows, n)
        assert y.dtype == dtype
        check_close(y, x, weight, offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_rows_have_the_same_bits_in_every_batch(n: int, k: int, dtype: torch.dtype) -> None:
    layer, _, _ = random_linear(n, k, dtype, bias=True)
    x = torch.randn(100, k, generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.set_num_threads(1)
    alone = torch.cat([layer(x[row : row + 1]) for row in range(100)])
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in range(1, 65):
            start = 7 * rows % 36
            assert torch.equal(layer(x[start : start + rows]), alone[start : start + rows]), (threads, rows, start)


def test_few_numbers_of_rows_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a kernel that oneDNN compiles and keeps."""
    layer, _, _ = random_linear(8, 8, torch.float32, bias=False)
    computed: set[int] = set()
    multiply = linear._multiply

    def counted(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        computed.add(len(x))
        return multiply(x, packed, bias)

    monkeypatch.setattr(linear, "_multiply", counted)
    for rows in range(1, 2049):
        assert layer(torch.zeros(rows, 8)).shape == (rows, 8)
        assert rows <= padded_rows(rows) <= max(rows + 1, rows * 9 // 8)
    assert computed == {padded_rows(rows) for rows in range(1, 2049)}
    assert min(computed) == 2
    assert len(computed) == 64


def test_only_the_packed_weight_is_kept() -> None:
    weight = torch.randn(320, 128)
    layer = Linear(weight)
    assert layer.packed_dtype == torch.float32
    assert layer.weight.layout == torch._mkldnn  # type: ignore[attr-defined]
    assert layer.nbytes == weight.nbytes
    assert not any(isinstance(value, torch.Tensor) and not value.is_mkldnn for value in vars(layer).values())


def test_types_that_onednn_cannot_multiply_are_packed_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_onednn_multiplies", lambda dtype: dtype == torch.float32)
    assert packed_dtype(torch.bfloat16, CPU) == torch.float32
    layer, weight, offset = random_linear(128, 64, torch.bfloat16, bias=True)
    x = torch.randn(3, 64).to(torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    check_close(y, x, weight, offset)
    assert layer.nbytes == 4 * (128 * 64 + 128)


def test_without_onednn_weights_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_onednn_multiplies", lambda dtype: False)
    layer, weight, offset = random_linear(96, 64, torch.float32, bias=True)
    x = torch.randn(3, 64)
    check_close(layer(x), x, weight, offset)
