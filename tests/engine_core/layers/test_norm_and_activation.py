"""Norms and the gated activation: right, and for each row the same bits whatever the other rows and the threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from engine_core.layers.activation import silu_and_mul
from engine_core.layers.norm import HeadNorm, RMSNorm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def check_rows(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    torch.set_num_threads(1)
    alone = torch.cat([layer(x[row : row + 1]) for row in range(len(x))])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (1, 2, 3, 7, 16, 33, len(x)):
            for start in (0, 1, 5):
                assert torch.equal(layer(x[start : start + rows]), alone[start : start + rows]), (threads, rows, start)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 1001, 2048])
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    x, weight = (3 * torch.randn(50, size)).to(dtype), torch.randn(size).to(dtype)
    norm = RMSNorm(weight, 1e-5)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(norm(x).double(), exact, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    check_rows(norm, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_norm_is_a_norm_of_each_head(dtype: torch.dtype) -> None:
    x = torch.randn(50, 5, 24).to(dtype)
    query_weight, key_weight = torch.randn(24).to(dtype), torch.randn(24).to(dtype)
    norm = HeadNorm(query_weight, 3, key_weight, 2, 1e-6)
    expected = torch.cat([RMSNorm(query_weight, 1e-6)(x[:, :3]), RMSNorm(key_weight, 1e-6)(x[:, 3:])], dim=1)
    torch.testing.assert_close(norm(x).to(dtype), expected)
    check_rows(norm, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 1001, 2304])
def test_silu_and_mul(size: int, dtype: torch.dtype) -> None:
    x = (4 * torch.randn(50, 2 * size)).to(dtype)
    gate, up = x.double().chunk(2, dim=-1)
    exact = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(silu_and_mul(x).double(), exact, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    check_rows(silu_and_mul, x)


def test_silu_of_far_values_is_finite() -> None:
    gate_up = torch.tensor([[-1e30, -200.0, 200.0, 1.0, 1.0, 1.0]])
    assert silu_and_mul(gate_up).tolist() == [[0.0, 0.0, 200.0]]
