"""Experts by native kernels, for every instruction set of this machine: right against float64 arithmetic, the same bits
for a row whatever the other rows and the threads; routers against transformers' own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from engine_core.kernels.capture import BufferPool
from engine_core.kernels.library import Kernels
from engine_core.ops.base import Routing, Scoring
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend
from engine_core.weights.experts import ExpertsShape

from .experts import SHAPES, activated, check_replay, chosen, factors, load, numbers, weights_of

pytestmark = pytest.mark.usefixtures("restored_threads")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


@pytest.fixture
def ops(kernels: Kernels) -> NativeBackend:
    return NativeBackend(kernels)


def exact(
    shape: ExpertsShape, dtype: torch.dtype, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """In float64."""
    output = torch.zeros_like(x, dtype=torch.float64)
    for expert in range(shape.num_experts):
        tensors, biases = weights_of(shape, expert, dtype)
        *added, of_down = [0.0] * len(tensors) if biases is None else [each.double() for each in biases]
        *expanding, down = (each.double() for each in tensors)
        rows, places = torch.nonzero(ids == expert, as_tuple=True)
        before, after = factors(shape, weights[rows, places].double())
        given = before * x[rows].double()
        inner = activated(shape, *(given @ each.T + bias for each, bias in zip(expanding, added, strict=True)))
        output.index_add_(0, rows, after * (inner @ down.T + of_down))
    return output


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_experts_against_float64_and_bitwise(ops: NativeBackend, shape: str, dtype: torch.dtype) -> None:
    sizes = SHAPES[shape]
    experts, width = load(ops.experts(sizes, dtype), sizes, dtype), sizes.hidden_size
    x, residual = (numbers(23, width, dtype=dtype, seed=seed) for seed in (900, 901))
    ids, weights = chosen(sizes, 23, seed=5)
    padded = partial(torch.nn.functional.pad, pad=(0, ops.padded(width) - width))
    torch.set_num_threads(1)
    y = experts(padded(x), ids, weights, padded(residual))
    tolerance = {"atol": TOLERANCE[dtype] * 4, "rtol": TOLERANCE[dtype]}
    expected = exact(sizes, dtype, x, ids, weights)
    torch.testing.assert_close(y[:, :width].double(), expected + residual.double(), **tolerance)
    assert not y[:, width:].any()
    torch.testing.assert_close(experts(padded(x), ids, weights, None)[:, :width].double(), expected, **tolerance)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        order = torch.randperm(23, generator=torch.Generator().manual_seed(threads))
        shuffled = experts(padded(x[order]), ids[order], weights[order], padded(residual[order]))
        assert torch.equal(shuffled, y[order])
        for row in (0, 22):
            one = slice(row, row + 1)
            alone = experts(padded(x[one]), ids[one].contiguous(), weights[one], padded(residual[one]))
            assert torch.equal(alone, y[one])


@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_calls_put_out_the_same_bits(ops: NativeBackend, dtype: torch.dtype) -> None:
    """Router, experts and grouped linear layers in steps of other sizes than the one that was captured."""
    shape = SHAPES["few"]
    experts = load(ops.experts(shape, dtype), shape, dtype)
    gate = ops.linear(numbers(4, 64, dtype=dtype, seed=1))
    grouped = ops.grouped_linear(numbers(2, 48, 32, dtype=dtype, seed=2))

    def block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids, weights = ops.route(gate(x, dtype=torch.float32), Routing(2, renormalize=True), None, None)
        output = experts(x, ids, weights, x)
        return output, grouped(output.view(-1, 2, 32))

    pool = BufferPool(200)
    x = pool.take(200, 64, dtype)
    check_replay(
        pool, lambda rows: x[:rows].copy_(numbers(rows, 64, dtype=dtype, seed=rows)), lambda rows: block(x[:rows])
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_rows_than_are_computed_together(ops: NativeBackend, dtype: torch.dtype) -> None:
    shape = SHAPES["few"]
    experts = load(ops.experts(shape, dtype), shape, dtype)
    x = numbers(500, 64, dtype=dtype, seed=7)
    ids, weights = chosen(shape, 500, seed=8)
    torch.set_num_threads(2)
    y = experts(x, ids, weights, None)
    for rows in (slice(0, 1), slice(100, 350), slice(499, 500)):
        assert torch.equal(experts(x[rows], ids[rows].contiguous(), weights[rows].contiguous(), None), y[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "outputs", "inputs"), [(1, 16, 16), (5, 80, 48), (3, 512, 1040)])
def test_grouped_linear(ops: NativeBackend, groups: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """Rows and groups of the input lie apart, as parts of heads do."""
    weight = numbers(groups, outputs, inputs, dtype=dtype, seed=1, size=inputs**-0.5)
    linear = ops.grouped_linear(weight)
    x = numbers(130, groups, inputs + 32, dtype=dtype, seed=2)[..., 16 : 16 + inputs]
    expected = torch.einsum("mgk,gnk->mgn", x.double(), weight.double())
    torch.set_num_threads(1)
    y = linear(x)
    torch.testing.assert_close(y.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.set_num_threads(3)
    assert torch.equal(linear(x), y)
    assert torch.equal(linear(x[40:47]), y[40:47])
    assert torch.equal(linear(x[129:]), y[129:])


ROUTERS = {
    "mixtral": (
        MixtralTopKRouter(MixtralConfig(hidden_size=32, num_local_experts=9, num_experts_per_tok=3)),
        Routing(3, renormalize=True),
    ),
    "qwen3": (
        Qwen3MoeTopKRouter(Qwen3MoeConfig(hidden_size=32, num_experts=20, num_experts_per_tok=4, norm_topk_prob=False)),
        Routing(4),
    ),
    "gpt-oss": (
        GptOssTopKRouter(GptOssConfig(hidden_size=32, num_local_experts=8, num_experts_per_tok=4)),
        Routing(4, renormalize=True),
    ),
    "deepseek v2 with groups": (
        DeepseekV2TopkRouter(
            DeepseekV2Config(
                hidden_size=32,
                n_routed_experts=12,
                num_experts_per_tok=4,
                topk_method="group_limited_greedy",
                n_group=4,
                topk_group=2,
                routed_scaling_factor=3.0,
            )
        ),
        Routing(4, scale=3.0, num_groups=4, topk_groups=2),
    ),
    "deepseek v3": (
        DeepseekV3TopkRouter(
            DeepseekV3Config(
                hidden_size=32,
                n_routed_experts=16,
                num_experts_per_tok=3,
                n_group=4,
                topk_group=2,
                routed_scaling_factor=2.5,
            )
        ),
        Routing(3, Scoring.SIGMOID, renormalize=True, scale=2.5, num_groups=4, topk_groups=2, group_best=2),
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", ROUTERS)
def test_routers_choose_as_transformers(ops: NativeBackend, name: str) -> None:
    router, routing = ROUTERS[name]
    for seed, parameter in enumerate(router.parameters()):
        parameter.copy_(numbers(*parameter.shape, dtype=torch.float32, seed=seed))
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is not None:
        bias.copy_(numbers(*bias.shape, dtype=torch.float32, seed=9, size=0.2))
    logits, weights, ids = router(numbers(200, 32, dtype=torch.float32, seed=4, size=0.3))
    order = weights if bias is None else logits.sigmoid().gather(1, ids) + bias[ids]
    order = order.argsort(descending=True)
    for backend in (ops, TorchBackend()):
        our_ids, our_weights = backend.route(logits, routing, bias, None)
        assert torch.equal(our_ids.long(), ids.gather(1, order))
        torch.testing.assert_close(our_weights, weights.gather(1, order), atol=1e-6, rtol=1e-5)


def test_ties_go_to_the_lower_expert_and_nan_to_some_expert(ops: NativeBackend) -> None:
    logits = torch.tensor(
        [[0.0, 1.0, 1.0, 0.0, 1.0], [2.0] * 5, [torch.nan] * 5, [torch.inf, 0.0, torch.nan, 1.0, 2.0]]
    )
    for backend in (ops, TorchBackend()):
        ids, _ = backend.route(logits[:2], Routing(3), None, None)
        assert ids.tolist() == [[1, 2, 4], [0, 1, 2]]
    for routing in (Routing(3), Routing(3, Scoring.SIGMOID)):
        ids, _ = ops.route(logits, replace(routing, num_groups=5, topk_groups=4), None, None)
        assert all(len(set(row)) == 3 and min(row) >= 0 and max(row) < 5 for row in ids.tolist())


def test_sigmoids_of_one_are_compared_by_their_logits(ops: NativeBackend) -> None:
    logits = torch.tensor([[30.0, 50.0, -1.0, 40.0]])
    for backend in (ops, TorchBackend()):
        ids, weights = backend.route(logits, Routing(2, Scoring.SIGMOID), None, None)
        assert ids.tolist() == [[1, 3]]
        assert weights.tolist() == [[1.0, 1.0]]


def test_scales_of_experts(ops: NativeBackend) -> None:
    logits, scales = numbers(7, 5, dtype=torch.float32, seed=1), torch.arange(5.0)
    ids, weights = ops.route(logits, Routing(2), None, None)
    for backend in (ops, TorchBackend()):
        _, scaled = backend.route(logits, Routing(2), None, scales)
        torch.testing.assert_close(scaled, weights * scales[ids.long()])
