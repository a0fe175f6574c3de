"""What adapters add to experts, in every format of their weights and by every instruction set of this machine: right
against float64, and for each row the same bits whatever is beside it, the threads and the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import pytest
import torch

from engine_core.kernels.capture import BufferPool, Captured, capturing
from engine_core.kernels.library import Kernels, load_int8_kernels, load_kernels
from engine_core.layers.lora_experts import LoRAExperts
from engine_core.lora.adapter import ExpertMatrices, LoRAMatrices
from engine_core.lora.targets import Projection
from engine_core.ops.base import ExpertsOp, ExpertsSplit, OpsBackend, UnloadedExperts
from engine_core.ops.int8_activations import Int8Activations
from engine_core.ops.lora import RowsByAdapter, StepAdapters
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.int8_experts import Int8Experts
from engine_core.weights.expert_tensors import SeparateExperts
from engine_core.weights.experts import ExpertsShape

from .experts import SHAPES, activated, chosen, factors, load, numbers, weights_of
from .parts import assert_same_bits, by_kind, check_experts, load_part, rows_of
from .test_native_quantized_experts import SHAPES as QUANTIZED_SHAPES
from .test_native_quantized_experts import expert_of
from .test_native_quantized_experts import make as make_quantized

pytestmark = pytest.mark.usefixtures("poisoned_memory", "restored_threads")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
ROUNDED = 4e-2
"""Tolerance where inputs are rounded to 8 bits."""
ADAPTERS = 4
WIDE = ("many", "several parts")
"""They take seconds."""
Tensors = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor] | None]
"""Gate, if any, up and down of an expert, and their biases."""
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@cache
def matrices(shape: ExpertsShape, adapter: int) -> dict[int, ExpertMatrices]:
    """An adapter with one A for gates and ups of all experts; one of every other expert with ranks of their own; one of
    a single down; one with many ranks of a single up.
    """
    hidden, inner, last = shape.hidden_size, shape.intermediate_size, shape.num_experts - 1

    def pair(rank: int, outputs: int, inputs: int, seed: int, scaling: float = 0.5) -> LoRAMatrices:
        a = numbers(rank, inputs, dtype=torch.float32, seed=seed, size=inputs**-0.5)
        return LoRAMatrices(a, numbers(outputs, rank, dtype=torch.float32, seed=seed + 1), scaling)

    def both(expert: int, ranks: tuple[int, int, int], scaling: float = 0.5) -> ExpertMatrices:
        seed = 1000 * adapter + 10 * expert
        found = {
            Projection.UP: pair(ranks[1], inner, hidden, seed + 2, scaling),
            Projection.DOWN: pair(ranks[2], hidden, inner, seed + 4),
        }
        return {Projection.GATE: pair(ranks[0], inner, hidden, seed)} | found if shape.gated else found

    if adapter == 0:
        every = {expert: both(expert, (5, 5, 3)) for expert in range(shape.num_experts)}
        for of_expert in every.values():
            if shape.gated:
                up = of_expert[Projection.UP]
                of_expert[Projection.GATE] = LoRAMatrices(up.a, of_expert[Projection.GATE].b, up.scaling)
        return every
    if adapter == 1:
        return {expert: both(expert, (2, 7 + expert % 3, 16), 0.25 * expert) for expert in range(0, last + 1, 2)}
    if adapter == 2:
        return {0: {Projection.DOWN: pair(1, hidden, inner, 2000)}}
    return {last: {Projection.UP: pair(33, inner, hidden, 3000)}}


class Adapted(ExpertsOp):
    """Experts with adapters: row i of a call has adapter ``places[i]``; −1: none."""

    def __init__(
        self, backend: OpsBackend, op: ExpertsOp, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None
    ) -> None:
        self.op, self.ops = op, backend.lora_ops()
        self.places: Sequence[int] = [row % (ADAPTERS + 1) - 1 for row in range(600)]
        shard = shape.whole if split is None else split.own
        self.ops.linear(16, 16)  # layers of other parts
        layer = LoRAExperts(shape, shard, SeparateExperts("experts"), self.ops, backend.padded, dtype)
        op.adapted = layer.op
        found = (dict(layer.weights(matrices(shape, adapter))) for adapter in range(ADAPTERS))
        self.adapters = tuple(self.ops.pack(each, dtype) for each in found)

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def step(self, rows: int) -> StepAdapters:
        groups = RowsByAdapter.of(np.array(self.places[:rows], np.intp), ADAPTERS)
        return StepAdapters(self.adapters, rows, groups, groups)

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        with self.ops.computing(self.step(len(x))):
            return self.op(x, ids, weights, residual)


def in_type(backend: OpsBackend, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None) -> Adapted:
    return _loaded(backend, backend.experts(shape, dtype, split), shape, dtype, split)


def in_8_bits(kernels: Kernels, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None) -> Adapted:
    return _loaded(NativeBackend(load_kernels()), Int8Experts(kernels, shape, dtype, split), shape, dtype, split)


def _loaded(
    backend: OpsBackend, op: UnloadedExperts, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None
) -> Adapted:
    if split is None:
        load(op, shape, dtype)
    else:
        load_part(op, shape, dtype, split)
    return Adapted(backend, op, shape, dtype, split)


def in_codes(
    backend: NativeBackend, kind: str, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None
) -> Adapted:
    return Adapted(backend, make_quantized(backend, kind, shape, dtype, split), shape, dtype, split)


def exact(
    shape: ExpertsShape,
    weights_of_expert: Callable[[int], Tensors],
    places: Sequence[int],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """In float64, with the rows' adapters merged into the experts' weights."""
    output = torch.zeros_like(x, dtype=torch.float64)
    names = (Projection.GATE, Projection.UP, Projection.DOWN)[-shape.num_expanding - 1 :]
    for expert in range(shape.num_experts):
        tensors, biases = weights_of_expert(expert)
        *added, of_down = [0.0] * len(tensors) if biases is None else [each.double() for each in biases]
        for adapter in range(-1, ADAPTERS):
            own = torch.tensor([place == adapter for place in places[: len(x)]])
            found = matrices(shape, adapter).get(expert, {}) if adapter >= 0 else {}
            *expanding, down = (
                each.double() + (pair.scaling * pair.b.double() @ pair.a.double() if (pair := found.get(name)) else 0)
                for name, each in zip(names, tensors, strict=True)
            )
            rows, chosen_at = torch.nonzero((ids == expert) & own[:, None], as_tuple=True)
            before, after = factors(shape, weights[rows, chosen_at].double())
            given = before * x[rows].double()
            inner = activated(shape, *(given @ each.T + bias for each, bias in zip(expanding, added, strict=True)))
            output.index_add_(0, rows, after * (inner @ down.T + of_down))
    return output


def check(
    experts: Adapted,
    shape: ExpertsShape,
    dtype: torch.dtype,
    weights_of_expert: Callable[[int], Tensors],
    tolerance: float,
) -> None:
    """Right; rows without adapters have the bits that they have without any, and every row those that it has alone."""
    count, width = 100, shape.hidden_size
    x, ids, weights, residual = rows_of(shape, count, dtype)
    torch.set_num_threads(1)
    y = experts(x, ids, weights, residual)
    expected = exact(shape, weights_of_expert, experts.places, x[:, :width], ids, weights) + residual[:, :width]
    for place in range(-1, ADAPTERS):
        rows = torch.tensor(experts.places[:count]) == place
        error = (y[rows, :width].double() - expected[rows]).norm()
        assert error < tolerance * (expected - residual[:, :width])[rows].norm(), place
    plain = experts.op(x, ids, weights, residual)
    without = torch.tensor(experts.places[:count]) < 0
    assert_same_bits(y[without], plain[without])
    assert not torch.equal(y[~without], plain[~without])
    places = experts.places
    for threads, rows in ((1, [7]), (2, [99]), (2, [3, 2, 1, 0]), (3, [*range(10, 100, 5), *range(60, 66)])):
        torch.set_num_threads(threads)
        experts.places = [places[row] for row in rows]
        assert_same_bits(experts(x[rows], ids[rows], weights[rows], residual[rows]), y[rows])
    experts.places = places


@by_dtype
@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[pytest.mark.wide] if name in WIDE else []) for name in SHAPES]
)
def test_experts_in_the_type_of_the_model(kernels: Kernels, shape: str, dtype: torch.dtype) -> None:
    sizes = SHAPES[shape]
    experts = in_type(NativeBackend(kernels), sizes, dtype, None)
    check(experts, sizes, dtype, lambda expert: weights_of(sizes, expert, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("shape", SHAPES)
def test_experts_by_torch(shape: str) -> None:
    sizes, count = SHAPES[shape], 60
    experts = in_type(TorchBackend(), sizes, torch.float32, None)
    ids, weights = chosen(sizes, count, seed=3)
    x = numbers(count, sizes.hidden_size, dtype=torch.float32, seed=4)
    expected = exact(sizes, lambda expert: weights_of(sizes, expert, torch.float32), experts.places, x, ids, weights)
    assert (experts(x, ids, weights, None).double() - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, *(pytest.param(each, marks=pytest.mark.wide) for each in DTYPES)])
@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[pytest.mark.wide] if name in WIDE else []) for name in SHAPES]
)
def test_experts_of_8_bits(int8_kernels: Kernels, shape: str, dtype: torch.dtype) -> None:
    sizes = SHAPES[shape]
    experts = in_8_bits(int8_kernels, sizes, dtype, None)
    check(experts, sizes, dtype, lambda expert: weights_of(sizes, expert, dtype), ROUNDED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *(pytest.param(each, marks=pytest.mark.wide) for each in DTYPES)])
@pytest.mark.parametrize(("kind", "shape"), [("Q4_K_M", "several parts"), ("MXFP4", "limited, with biases")])
def test_experts_of_codes(kernels: Kernels, kind: str, shape: str, dtype: torch.dtype) -> None:
    sizes = QUANTIZED_SHAPES[shape]
    experts = in_codes(NativeBackend(kernels), kind, sizes, dtype, None)
    check(experts, sizes, dtype, partial(_dequantized, sizes, kind), TOLERANCE[dtype])


@pytest.mark.parametrize(("kind", "shape"), [("Q4_K_M", "ungated"), ("MXFP4", "limited, with biases")])
def test_experts_of_codes_whose_inputs_are_rounded(int8_kernels: Kernels, kind: str, shape: str) -> None:
    sizes, backend = QUANTIZED_SHAPES[shape], NativeBackend(load_kernels(), Int8Activations(int8_kernels))
    experts = in_codes(backend, kind, sizes, torch.bfloat16, None)
    check(experts, sizes, torch.bfloat16, partial(_dequantized, sizes, kind), ROUNDED)


def _dequantized(shape: ExpertsShape, kind: str, expert: int) -> Tensors:
    weights, biases = expert_of(shape, kind, expert)
    inner = shape.intermediate_size
    split = None if biases is None else biases.split([inner, inner, shape.hidden_size])
    return [each.dequantized() for each in weights], split


@by_kind
@pytest.mark.parametrize("shape", ["padded, with biases", "weighed inputs", "ungated"])
def test_parts_of_ranks(kernels: Kernels, shape: str, expert_parallel: bool) -> None:
    make = partial(in_type, NativeBackend(kernels))
    check_experts(make, SHAPES[shape], torch.bfloat16, 3, expert_parallel=expert_parallel)


@by_kind
def test_parts_of_8_bits(expert_parallel: bool) -> None:
    make = partial(in_8_bits, load_int8_kernels())
    check_experts(make, SHAPES["padded, with biases"], torch.float32, 3, expert_parallel=expert_parallel)


@by_kind
def test_parts_of_codes(expert_parallel: bool) -> None:
    make = partial(in_codes, NativeBackend(load_kernels()), "Q4_K_M")
    check_experts(make, QUANTIZED_SHAPES["few"], torch.bfloat16, 2, expert_parallel=expert_parallel)


def test_captured_calls_read_the_adapters_of_each_step() -> None:
    shape, dtype = SHAPES["few"], torch.bfloat16
    experts, pool = in_type(NativeBackend(load_kernels()), shape, dtype, None), BufferPool(100)
    x, ids = pool.take(100, shape.hidden_size, dtype), pool.take(100, shape.top_k, torch.int32)
    weights = pool.take(100, shape.top_k, torch.float32)
    captured = Captured(pool, load_kernels().replay)
    with capturing(captured):
        output = experts.op(x[:5], ids[:5], weights[:5], None)
    whole = output.as_strided((100, shape.hidden_size), output.stride())
    for rows, threads in ((1, 2), (100, 1), (33, 3)):
        x[:rows], ids[:rows], weights[:rows], _ = rows_of(shape, rows, dtype)
        captured.replay(rows=rows, num_threads=threads)
        assert_same_bits(whole[:rows], experts.op(x[:rows], ids[:rows], weights[:rows], None))
        with experts.ops.computing(experts.step(rows)):
            captured.replay(rows=rows, num_threads=threads)
        assert_same_bits(whole[:rows], experts(x[:rows], ids[:rows], weights[:rows], None))
