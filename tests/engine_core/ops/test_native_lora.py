"""What the native kernel adds to rows with adapters, for every instruction set of this machine: right against torch, to
no other number, and for each row the same bits whatever is beside it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.kernels.capture import BufferPool, Captured, capturing
from engine_core.kernels.library import Kernels, load_kernels
from engine_core.ops.lora import LoRAOutputs, LoRAWeights
from engine_core.ops.native import NativeBackend
from engine_core.ops.native_experts import factor_type
from engine_core.ops.native_lora import NativeAdapter, NativeLoRAOps
from engine_core.ops.torch_lora import TorchLoRAOps

from .experts import numbers
from .lora_layers import ADAPTERS, LAYERS, LINEAR, Layer, Part, Shape, places_of, weights
from .parts import assert_same_bits

pytestmark = pytest.mark.usefixtures("poisoned_memory")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_layer = pytest.mark.parametrize("layer", LAYERS)
LAYERS_AND_TYPES = [
    pytest.param(layer, dtype, id=f"{layer}-{dtype}", marks=() if "bfloat16" in str(dtype) else pytest.mark.wide)
    for layer in LAYERS
    for dtype in DTYPES
]


def assert_close(x: torch.Tensor, y: torch.Tensor, factors: torch.dtype) -> None:
    """``factors``: the type of inner products."""
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(x, y, atol=2e-4 + 2 * eps if factors == torch.float32 else 0.2, rtol=2 * eps)


@by_layer
@by_dtype
def test_is_right(kernels: Kernels, layer: str, dtype: torch.dtype) -> None:
    shape = LAYERS[layer]
    native, by_torch = (Layer.make(ops, shape, ADAPTERS, dtype) for ops in (NativeLoRAOps(kernels), TorchLoRAOps()))
    for rows, wide in ((1, False), (23, False), (70, True)):
        places = [3] if rows == 1 else places_of(rows, len(ADAPTERS))
        x = shape.numbers(rows, shape.inputs + 16, dtype, seed=rows)[..., 16:]
        kept = shape.numbers(rows, shape.outputs + 7, torch.float32 if wide else dtype, seed=9)
        results = [kept.clone(), kept.clone()]
        for each, y in zip((native, by_torch), results, strict=True):
            with each.ops.computing(each.step(places)):
                each.op(x, y[..., 3:-4], 0.75)
        assert_close(results[0], results[1], factor_type(kernels, dtype))
        assert not torch.equal(results[0], kept)
        # To nothing, all that an adapter adds is seen; to other numbers it may be too little.
        nothing = torch.zeros(results[1][..., 3:-4].shape)
        added = by_torch.added(x, nothing, by_torch.step(places))
        untouched = torch.nn.functional.pad(added == 0, (3, 4), value=True)
        assert_same_bits(results[0][untouched], kept[untouched])


@by_dtype
def test_outputs_that_nothing_adds_to_keep_their_bits(kernels: Kernels, dtype: torch.dtype) -> None:
    """−0 and NaN, too: of rows without adapter, of other layers, and of columns between those of an adapter."""
    layer = Layer.make(NativeLoRAOps(kernels), LINEAR, ADAPTERS, dtype)
    x = numbers(9, LINEAR.inputs, dtype=dtype)
    x[2] = float("inf")
    y = torch.full((9, LINEAR.outputs), -0.0, dtype=dtype)
    y[:, ::3] = float("nan")
    step = layer.step([-1, 2, 3, -1, 1, 4, -1, 3, 2])
    added = layer.added(x, y, step)
    of_adapter = {place: {c for part in parts for c in part.columns} for place, parts in enumerate(ADAPTERS)}
    for row, place in enumerate([-1, 2, 3, -1, 1, 4, -1, 3, 2]):
        beside = [c for c in range(LINEAR.outputs) if c not in of_adapter.get(place, ())]
        assert_same_bits(added[row, beside], y[row, beside])
    assert not added[4, 1::3].eq(0).any()
    assert_same_bits(layer.added(x, y, layer.step([-1] * 9)), y)
    other = layer.ops.linear(LINEAR.inputs, LINEAR.outputs)
    assert other.layer == 3
    layer.op(x, y, 1.0)  # outside of a step
    assert y[:, 1::3].eq(0).all()


@pytest.mark.parametrize(("layer", "dtype"), LAYERS_AND_TYPES)
def test_a_row_has_the_bits_that_it_has_alone(kernels: Kernels, layer: str, dtype: torch.dtype) -> None:
    """Beside 63 rows of 63 other adapters, beside rows of its own, and beside none; whatever the threads."""
    shape, many = LAYERS[layer], [ADAPTERS[i % len(ADAPTERS)] for i in range(64)]
    made = Layer.make(NativeLoRAOps(kernels), shape, many, dtype)
    x, y = (shape.numbers(64, width, dtype, seed) for seed, width in enumerate((shape.inputs, shape.outputs)))
    torch.set_num_threads(1)

    def alone(places: Sequence[int]) -> torch.Tensor:
        rows = [
            made.added(x[row : row + 1], y[row : row + 1], made.step([place], order=[place]))
            for row, place in enumerate(places)
        ]
        return torch.cat(rows)

    of_all, of_some = [*range(64)], [row % 3 for row in range(64)]
    expected = {tuple(places): alone(places) for places in (of_all, of_some, [3] * 64)}
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        for places, computed in expected.items():
            for order in (range(64), range(63, -1, -1)):
                assert_same_bits(made.added(x, y, made.step(places, order=order)), computed)
        few = made.added(x[:5], y[:5], made.step([*of_all[:4], -1]))
        assert_same_bits(few[:4], expected[*of_all][:4])
        assert_same_bits(few[4:], y[4:5])


@by_dtype
def test_a_part_of_the_outputs_has_the_bits_of_the_whole(kernels: Kernels, dtype: torch.dtype) -> None:
    """As on a rank, wherever its first output lies in a panel."""
    whole = Layer.make(NativeLoRAOps(kernels), LINEAR, ADAPTERS, dtype)
    x, y, places = (*(numbers(9, n, dtype=dtype, seed=n) for n in LINEAR[1:3]), [0, 1, 2, 3, 4, 0, 3, -1, 3])
    expected = whole.added(x, y, whole.step(places))
    for first, end in ((0, 505), (505, 840), (840, 1200)):
        ops = NativeLoRAOps(kernels)
        op, adapters = ops.linear(LINEAR.inputs, end - first), []
        for i, parts in enumerate(ADAPTERS):
            all_of = weights(LINEAR, parts, 10 * i)
            here = [(each, (each.columns >= first) & (each.columns < end)) for each in all_of.outputs]
            outputs = [LoRAOutputs(one.ranks, one.columns[in_] - first, one.b[in_]) for one, in_ in here if in_.any()]
            touched = {0: LoRAWeights(all_of.a, all_of.scales, tuple(outputs))} if outputs else {}
            adapters.append(ops.pack(touched, dtype))
        part = Layer(Shape(0, LINEAR.inputs, end - first), ops, op, adapters)
        assert_same_bits(part.added(x, y[:, first:end], part.step(places)), expected[:, first:end])


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_any_grouping(data: st.DataObject) -> None:
    """Ranks, outputs, and which rows have which adapter."""
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = Shape(0, 16 * data.draw(st.integers(1, 9)), 16 * data.draw(st.integers(1, 40)))
    bounds = st.lists(st.integers(0, shape.outputs), min_size=2, max_size=4, unique=True).map(sorted)
    adapters = []
    for _ in range(data.draw(st.integers(1, 5))):
        cuts = data.draw(bounds)
        ranks = data.draw(st.lists(st.integers(1, 64), min_size=len(cuts) - 1, max_size=len(cuts) - 1))
        adapters.append([Part(range(*ends), r) for *ends, r in zip(cuts, cuts[1:], ranks, strict=False)])
    rows = data.draw(st.integers(0, 40))
    places = data.draw(st.lists(st.integers(-1, len(adapters) - 1), min_size=rows, max_size=rows))
    native, by_torch = (
        Layer.make(ops, shape, adapters, dtype) for ops in (NativeBackend(load_kernels()).lora_ops(), TorchLoRAOps())
    )
    x, y = (shape.numbers(rows, width, dtype, seed=rows) for width in shape[1:3])
    added, expected = (each.added(x, y, each.step(places), -0.5) for each in (native, by_torch))
    assert_close(added, expected, factor_type(load_kernels(), dtype))
    torch.set_num_threads(data.draw(st.integers(1, 3)))
    for row in range(0, rows, 7):
        alone = native.added(x[row : row + 1], y[row : row + 1], native.step(places[row : row + 1]))
        assert_same_bits(native.added(x, y, native.step(places))[row : row + 1], alone)


@by_dtype
def test_captured_calls_follow_the_adapters_of_each_step(kernels: Kernels, dtype: torch.dtype) -> None:
    """They come and go between replays; behind a selection, wanted rows alone are computed."""
    backend = NativeBackend(kernels)
    ops = backend.lora_ops()
    layer = Layer.make(ops, LINEAR, ADAPTERS, dtype)
    pool = BufferPool(100)
    x, y = (pool.take(100, width, dtype) for width in LINEAR[1:3])
    chosen, targets = (pool.take(100, width, dtype) for width in LINEAR[1:3])
    captured = Captured(pool, kernels.replay)
    with capturing(captured):
        layer.op(x, y)
        backend._kernels.select_rows.run(
            x=x,
            output=chosen,
            rows=100,
            row_bytes=x.shape[1] * x.itemsize,
            x_stride=x.stride(0) * x.itemsize,
        )
        layer.op(chosen, targets, 2.0)
    for rows, threads in ((1, 1), (64, 2), (5, 1), (100, 3), (7, 2)):
        places, wanted = places_of(rows, len(ADAPTERS), rows), sorted({0, rows // 2, rows - 1})
        order = sorted({place for place in places if place >= 0}, reverse=True)
        kept = [numbers(rows, width, dtype=dtype, seed=rows + width) for width in (*LINEAR[1:3], LINEAR.outputs)]
        x[:rows], y[:rows], targets[: len(wanted)] = kept[0], kept[1], kept[2][: len(wanted)]
        selected = torch.tensor(wanted)
        fields = {"selected": selected.data_ptr(), "num_selected": len(wanted), "num_threads": threads}
        step = layer.step(places, wanted, order)
        with ops.computing(step):
            captured.replay(rows=rows, **fields)
        assert_same_bits(y[:rows], layer.added(kept[0], kept[1], step))
        of_wanted = layer.step([places[row] for row in wanted])
        assert_same_bits(targets[: len(wanted)], layer.added(kept[0][selected], kept[2][: len(wanted)], of_wanted, 2.0))
        captured.replay(rows=rows, **fields)  # a step without adapters
        assert_same_bits(y[:rows], layer.added(kept[0], kept[1], step))


def test_a_step_keeps_its_adapters_until_it_ends() -> None:
    ops = NativeLoRAOps(load_kernels())
    layer = Layer.make(ops, LINEAR, ADAPTERS[:2], torch.float32)
    [adapter, _] = layer.adapters
    assert isinstance(adapter, NativeAdapter)
    gone = weakref.ref(adapter.weights)
    del adapter
    x, y = (numbers(2, width, dtype=torch.float32) for width in LINEAR[1:3])
    expected = layer.added(x, y, layer.step([0, 1]))
    ops.begin(layer.step([0, 1]))
    layer.adapters.clear()
    gc.collect()
    assert gone() is not None
    layer.op(x, y)
    assert_same_bits(y, expected)
    ops.end()
    assert gone() is None


def test_bytes_of_an_adapter() -> None:
    ops = NativeLoRAOps(load_kernels())
    layer = Layer.make(ops, Shape(0, 1024, 4096), [[Part(range(4096), 16)]], torch.bfloat16)
    assert 2 * 16 * (1024 + 4096) <= layer.adapters[0].nbytes < 2 * 16 * (1024 + 4096) + 1000
