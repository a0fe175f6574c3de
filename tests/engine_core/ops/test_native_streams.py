"""The native kernels of residual streams, for every instruction set of this machine: right beside torch, and for each
row the same bits whatever the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from engine_core.kernels.library import Kernels
from engine_core.ops.lora import LoRAOps, RowsByAdapter, StepAdapters
from engine_core.ops.native_lora import NativeLoRAOps
from engine_core.ops.native_streams import NativeStreamOps
from engine_core.ops.streams import StreamOps
from engine_core.ops.torch_lora import TorchLoRAOps

from .experts import numbers

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ROWS, WIDTH, REAL = 7, 48, 40
Call = Callable[[StreamOps, slice], tuple[torch.Tensor, ...]]


def calls(count: int, dtype: torch.dtype) -> dict[str, Call]:
    """Every op on ``count`` streams, of some of the rows."""
    streams, update = numbers(ROWS, count, WIDTH, dtype=dtype), numbers(ROWS, WIDTH, dtype=dtype, seed=1)
    small = partial(numbers, dtype=torch.float32)
    logits, scale = small(ROWS, count, seed=2), small(WIDTH, seed=3)
    predict, correct = small(count * count, count, seed=4), small(count, count, seed=5)
    padded = numbers(ROWS, WIDTH, dtype=dtype, seed=6)
    padded[:, REAL:] = 0
    others = numbers(ROWS, count - 1, WIDTH, dtype=dtype, seed=7)

    def cut_off(ops: StreamOps, at: slice) -> tuple[torch.Tensor, ...]:
        x = padded[at].clone()
        ops.cut_off(x[:, :16], x.clone(), REAL, 0.5)
        return (x,)

    active = count - 1
    return {
        "predict": lambda ops, at: ops.predict(streams[at], logits[at], predict, active),
        "correct": lambda ops, at: ops.correct(streams[at], update[at], logits[at], correct, active, None),
        "scaled": lambda ops, at: ops.correct(streams[at], update[at], logits[at], correct, 0, scale),
        "add": lambda ops, at: (ops.add_to_others(streams[at], update[at]),),
        "apart": lambda ops, at: (ops.apart(streams[at]).transpose(0, 1),),
        "spread": lambda ops, at: (ops.spread(padded[at], others[at], REAL),),
        "joined": lambda ops, at: (ops.joined(update[at], padded[at], streams[at, 0], REAL, 0.25),),
        "cut off": cut_off,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_streams(kernels: Kernels, count: int, dtype: torch.dtype) -> None:
    native, error = NativeStreamOps(kernels), 1e-5 if dtype == torch.float32 else 2e-2
    for name, call in calls(count, dtype).items():
        together = call(native, slice(ROWS))
        for actual, expected in zip(together, call(StreamOps(), slice(ROWS)), strict=True):
            assert actual.dtype == expected.dtype
            assert torch.allclose(actual.float(), expected.float(), rtol=error, atol=error), name
        for row in range(ROWS):
            alone = call(native, slice(row, row + 1))
            assert all(torch.equal(one[0], all_[row]) for one, all_ in zip(alone, together, strict=True)), name


@pytest.mark.parametrize("rows", [slice(ROWS), slice(2, 6)], ids=["all rows", "wanted rows"])
def test_rows_with_adapters_have_weights_of_their_own(kernels: Kernels, rows: slice) -> None:
    """The second of three adapters has none."""
    count, dtype = 4, torch.bfloat16
    streams, update = numbers(ROWS, count, WIDTH, dtype=dtype)[rows], numbers(ROWS, WIDTH, dtype=dtype, seed=1)[rows]
    small = partial(numbers, dtype=torch.float32)
    logits = small(ROWS, count, seed=2)[rows]
    weights = [small(count * count, count, seed=3 + seed) for seed in range(3)]  # the model's, and two adapters'
    places = np.array([1, -1, 0, 2, 1, -1, 2])
    of_place = {-1: weights[0], 0: weights[1], 1: weights[0], 2: weights[2]}
    found = []
    options: list[tuple[StreamOps, LoRAOps]] = [
        (NativeStreamOps(kernels), NativeLoRAOps(kernels)),
        (StreamOps(), TorchLoRAOps()),
    ]
    for ops, lora in options:
        lora.linear(16, 16)
        of_predicted, of_corrected = lora.merged(), lora.merged()
        merged = [{1: each, 2: each[:count]} for each in (weights[1], weights[0], weights[2])]
        packed = tuple(lora.pack({}, dtype, {} if place == 1 else each) for place, each in enumerate(merged))
        step = StepAdapters(packed, ROWS, RowsByAdapter.of(places, 3), RowsByAdapter.of(places[rows], 3))
        with lora.computing(step):
            predicted, _ = ops.predict(streams, logits, weights[0], 1, of_predicted)
            corrected, _ = ops.correct(streams, update, logits, weights[0][:count], 1, None, of_corrected)
        for row, place in enumerate(places[rows]):
            one, weight = slice(row, row + 1), of_place[place]
            alone, _ = ops.predict(streams[one], logits[one], weight, 1)
            assert torch.equal(predicted[one], alone)
            alone, _ = ops.correct(streams[one], update[one], logits[one], weight[:count], 1, None)
            assert torch.equal(corrected[one], alone)
        outside, _ = ops.predict(streams, logits, weights[0], 1, of_predicted)
        plain, _ = ops.predict(streams, logits, weights[0], 1)
        assert torch.equal(outside, plain)
        found.append(predicted)
    assert torch.allclose(found[0].float(), found[1].float(), rtol=2e-2, atol=2e-2)


def test_a_cutoff_is_exact_among_much_padding(kernels: Kernels) -> None:
    x = torch.zeros(1, 4096)
    x[0, ::2048] = torch.tensor([1000.0, 1000.25])
    for ops in (NativeStreamOps(kernels), StreamOps()):
        cut = x.clone()
        ops.cut_off(cut, x, 2, 0.0)
        assert cut[0, 2048] == 0.125
        cut = x.clone()
        ops.cut_off(cut, x, 2, 0.5)
        assert cut[0, 2048] == pytest.approx(0.0625, rel=1e-3)
