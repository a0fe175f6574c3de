"""What adapters add, against torch; bit for bit alone and beside others, and as captured launches find it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from engine_core.ops.gpu_lora import TritonLoRAOps
from engine_core.ops.torch_lora import TorchLoRAOps
from tests.engine_core.ops.experts import numbers
from tests.engine_core.ops.lora_layers import Layer, Part, Shape, places_of
from tests.engine_core.ops.parts import assert_same_bits

WIDE = pytest.mark.wide
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}
LINEAR = Shape(0, 208, 200)
LAYERS = {"linear": LINEAR, "shared A": Shape(2, 64, 200, 1, 2), "shared B": Shape(2, 64, 200, 2, 1)}
ADAPTERS = [
    [Part(range(80), 16), Part(range(80, 150), 5), Part(range(150, 200), 40)],
    [Part(range(200), 8)],
    [Part(range(30, 37), 1)],
    [Part([*range(16), *range(24, 40), *range(41, 49, 2)], 33), Part([17, 199], 3)],
    [Part(range(150, 200), 16)],
]
"""Mixed ranks, outputs between those of parts that no part has, and parts of more columns than a tile."""
by_dtype = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=WIDE), pytest.param(torch.float16, marks=WIDE)], ids=str
)


def ops() -> TritonLoRAOps:
    return TritonLoRAOps(3, torch.device("cpu"))


@WIDE
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_is_right(layer: str, dtype: torch.dtype) -> None:
    """Strided rows and groups, mixed ranks, rows without adapters, and outputs in float32."""
    shape = LAYERS[layer]
    made, by_torch = (Layer.make(each, shape, ADAPTERS, dtype) for each in (ops(), TorchLoRAOps()))
    for rows, wide in ((1, False), (50, True)):
        places = [3] if rows == 1 else places_of(rows, len(ADAPTERS))
        x = shape.numbers(rows, shape.inputs + 16, dtype, seed=rows)[..., 16:]
        kept = shape.numbers(rows, shape.outputs + 7, torch.float32 if wide else dtype, seed=9)
        results = [kept.clone(), kept.clone()]
        for each, y in zip((made, by_torch), results, strict=True):
            with each.ops.computing(each.step(places)):
                each.op(x, y[..., 3:-4], 0.75)
        torch.testing.assert_close(*results, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert not torch.equal(results[0], kept)
        touched = torch.zeros(kept.shape, dtype=torch.bool)
        for row, place in enumerate(places):
            for part in ADAPTERS[place] if place >= 0 else ():
                touched[row, ..., 3 + torch.tensor(part.columns)] = True
        assert_same_bits(results[0][~touched], kept[~touched])


@pytest.mark.parametrize("layer", ["linear", pytest.param("shared A", marks=WIDE)])
@by_dtype
def test_a_row_has_the_bits_that_it_has_alone(layer: str, dtype: torch.dtype) -> None:
    """Beside rows of other adapters, beside more of its own than a tile has, and beside none."""
    shape = LAYERS[layer]
    made = Layer.make(ops(), shape, ADAPTERS, dtype)
    rows = 36
    x, y = (shape.numbers(rows, width, dtype, seed) for seed, width in enumerate((shape.inputs, shape.outputs)))
    for places in (places_of(rows, len(ADAPTERS)), [4] * rows):
        together = made.added(x, y, made.step(places))
        for row in (0, 35):
            alone = made.step([places[row]], order=[max(0, places[row])])
            assert_same_bits(together[row : row + 1], made.added(x[row : row + 1], y[row : row + 1], alone))
        assert_same_bits(made.added(x, y, made.step(places, order=[4, 3, 2, 1, 0])), together)


def test_captured_launches_follow_the_adapters_of_each_step() -> None:
    """They come and go between replays; a step may have fewer rows than are captured."""
    made = Layer.make(ops(), LINEAR, ADAPTERS, torch.float32)
    x, y = (numbers(8, width, dtype=torch.float32, seed=width) for width in LINEAR[1:3])
    with torch.inference_mode(), made.ops.rehearsing(8, ranks=96):
        launch = captured(made, x, y)
    assert_same_bits(y, numbers(8, LINEAR.outputs, dtype=torch.float32, seed=LINEAR.outputs))
    for places in ([3], [1, -1, 3, 0, 0, 2, 4, 3], [-1, -1]):
        kept = y.clone()
        order = sorted({place for place in places if place >= 0}, reverse=True)
        step = made.step(places, order=order)
        with made.ops.computing(step):
            launch()
        assert_same_bits(y[: len(places)], made.added(x[: len(places)], kept[: len(places)], step))
        assert_same_bits(y[len(places) :], kept[len(places) :])
    fewer = made.step([1, 2, 3, 0, 1], wanted=[1, 4])
    with made.ops.computing(fewer):  # a step that is not replayed, behind the last layer's attention
        made.op(x[:2], y[:2])
    with made.ops.computing(made.step([0] * 30)):  # more rows than are captured
        many = y[:1].repeat(30, 1)
        made.op(x[:1].repeat(30, 1), many)
    assert_same_bits(many, made.added(x[:1], y[:1], made.step([0])).repeat(30, 1))


def captured(layer: Layer, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Launches of ``layer.op``, with the addresses that they have now; call it within ``rehearsing``."""
    launches: list[Callable[[], None]] = []
    with pytest.MonkeyPatch.context() as patch:
        run = InterpretedFunction.run

        def recorded(kernel: Any, *args: Any, **options: Any) -> None:
            launches.append(partial(run, kernel, *args, **options))
            run(kernel, *args, **options)

        patch.setattr(InterpretedFunction, "run", recorded)
        layer.op(x, y)
    assert len(launches) == 2

    def replay() -> None:
        for each in launches:
            each()

    return replay


def test_bytes_of_an_adapter() -> None:
    """Ranks are counted in units of 16, as a file's are."""
    made = Layer.make(ops(), Shape(0, 1024, 4096), [[Part(range(4096), 5)]], torch.bfloat16)
    assert 2 * 16 * (1024 + 4096) <= made.adapters[0].nbytes < 1.03 * 2 * 16 * (1024 + 4096)
