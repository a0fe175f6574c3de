"""Ops by plain torch, which are the reference for others, against float64."""

from __future__ import annotations

import pytest
import torch

from engine_core.ops.activation import Activation
from engine_core.ops.torch import TorchBackend

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPS = TorchBackend()


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(dtype: torch.dtype) -> None:
    x, weight, bias, residual = (torch.randn(size).to(dtype) for size in ((7, 40), (11, 40), (11,), (7, 11)))
    linear = OPS.linear(weight, bias)
    expected = x.double() @ weight.double().T + bias.double() + residual.double()
    torch.testing.assert_close(linear(x, residual=residual).double(), expected, atol=0.05, rtol=0.01)
    among_others = torch.cat([x, residual], 1)[:, 40:]
    assert torch.equal(linear(x, residual=among_others), linear(x, residual=residual))
    assert linear(x, dtype=torch.float32).dtype == torch.float32
    assert torch.equal(linear.weight_rows(torch.tensor([3, 0])), weight[[3, 0]])
    assert linear.greatest(x).ids.tolist() == linear(x, dtype=torch.float32).argmax(1).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 1001, 2048])
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    x, weight = (3 * torch.randn(50, size)).to(dtype), torch.randn(size).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    norm = OPS.norm(weight.float(), None, 1e-5, size)
    torch.testing.assert_close(norm(x).double(), exact, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    expected = norm(x)
    norm(x, in_place=True)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 1001, 2304])
def test_silu_and_mul(size: int, dtype: torch.dtype) -> None:
    x = (4 * torch.randn(50, 2 * size)).to(dtype)
    gate, up = x.double().chunk(2, dim=-1)
    exact = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(
        OPS.act_and_mul(x, Activation.SILU).double(), exact, atol=1e-5, rtol=2 * torch.finfo(dtype).eps
    )
