"""The native kernels of residual streams, for every instruction set of this machine: right beside torch, and for each
row the same bits whatever the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from engine_core.kernels.library import Kernels
from engine_core.ops.native_streams import NativeStreamOps
from engine_core.ops.streams import StreamOps

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
