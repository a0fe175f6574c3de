"""The native kernels, for every instruction set of this machine: right, and the same bits whatever the steps are."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.kernels.library import INSTRUCTION_SETS, Kernels, KernelsUnavailableError, load_kernels
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, MLAAttentionSpec
from tests.engine_core.attention.sequences import CPU, Geometry, Known, Run, assert_equal, assert_right, make_sequences

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("poisoned_memory")]

GEOMETRIES = [
    Geometry(4, 2, 64, 16),
    Geometry(7, 1, 16, 16),
    Geometry(4, 4, 48, 8),
    Geometry(12, 1, 32, 256),
    Geometry(10, 2, 80, 1),
    Geometry(6, 2, 128, 40),
    Geometry(4, 2, 32, 4),
    Geometry(2, 1, 256, 32),
    Geometry(50, 1, 16, 16),  # more heads in a group than fill a query tile
]
WINDOWED = [
    (Geometry(4, 2, 64, 16), torch.float32),
    (Geometry(7, 1, 16, 16), torch.float16),
    (Geometry(10, 2, 80, 1), torch.float32),
    (Geometry(6, 2, 128, 40), torch.bfloat16),
    (Geometry(12, 1, 32, 256), torch.bfloat16),
]
TOLERANCE = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-6},
    torch.float16: {"atol": 5e-4, "rtol": 1e-3},
    torch.bfloat16: {"atol": 6e-3, "rtol": 6e-3},  # weights and outputs are rounded
}

WIDENED = (torch.float32, torch.float16)
# bfloat16 has products of its own; the other types are widened alike when they are read, so some sizes show each.
FEW = {torch.bfloat16: range(9), torch.float32: (0, 2, 4), torch.float16: (1, 3, 5)}
CASES = [
    pytest.param(geometry, dtype, marks=() if index in FEW[dtype] else pytest.mark.wide)
    for index, geometry in enumerate(GEOMETRIES)
    for dtype in TOLERANCE
]


@pytest.fixture
def backend(kernels: Kernels) -> NativeAttention:
    return NativeAttention(kernels)


def random_lengths(rng: random.Random, most: int) -> list[int]:
    edges = [1, 2, 15, 16, 17, 31, 100, 127, 128, 129, 255, 257, 300]
    return [rng.choice(edges) for _ in range(rng.randint(1, most))]


def check(backend: NativeAttention, geometry: Geometry, sequences: list[Known], **options: Any) -> None:
    """Right against float64 when each sequence is a step; in random steps, and with more threads, the same bits."""
    rng = random.Random(str((geometry, options)))
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences, **options).at_once()
    assert_right(alone, sequences, **TOLERANCE[sequences[0].query.dtype], **options)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert_equal(Run(backend, geometry, sequences, seed=threads, **options).in_random_steps(rng), alone)


@pytest.mark.parametrize(("geometry", "dtype"), CASES, ids=str)
def test_against_float64_and_bitwise(backend: NativeAttention, geometry: Geometry, dtype: torch.dtype) -> None:
    lengths = random_lengths(random.Random(str(geometry)), 8)
    check(backend, geometry, make_sequences([*lengths, 530], geometry, dtype, seed=3))


def diagonal(*others: tuple[Any, ...]) -> list[Any]:
    """Each of ``WINDOWED`` with one of the others; with all of them in `make test-wide`."""
    return [
        pytest.param(*case, *other, marks=() if number % len(others) == index else pytest.mark.wide)
        for number, case in enumerate(WINDOWED)
        for index, other in enumerate(others)
    ]


@pytest.mark.parametrize(
    ("geometry", "dtype", "window", "chunked"),
    diagonal((1, False), (33, False), (129, False), (16, True), (150, True), (270, True)),
    ids=str,
)
def test_windows(backend: NativeAttention, geometry: Geometry, dtype: torch.dtype, window: int, chunked: bool) -> None:
    """Blocks behind a window are poisoned as soon as no row of a step sees them."""
    lengths = [*random_lengths(random.Random(str((geometry, window))), 3), window, window + 1, 530]
    sequences = make_sequences(lengths, geometry, dtype, seed=window)
    check(backend, geometry, sequences, window=window, chunked=chunked)


@pytest.mark.parametrize(
    ("geometry", "dtype", "softcap", "sunk"), diagonal((5.0, False), (5.0, True), (None, True)), ids=str
)
def test_capped_scores_and_sinks(
    backend: NativeAttention, geometry: Geometry, dtype: torch.dtype, softcap: float | None, sunk: bool
) -> None:
    """One sink is too small to matter, one so large that it takes nearly everything."""
    lengths = [*random_lengths(random.Random(str((geometry, softcap, sunk))), 3), 1, 530]
    sinks = torch.linspace(-200.0, 200.0, geometry.num_heads) if sunk else None
    sequences = make_sequences(lengths, geometry, dtype, seed=4)
    check(backend, geometry, sequences, window=40, softcap=softcap, sinks=sinks)


PICTURES = ((0, 3), (7, 8), (14, 70), (70, 131), (140, 145), (250, 520))


@pytest.mark.parametrize(("geometry", "dtype", "window"), diagonal((None,), (33,), (150,)), ids=str)
def test_tokens_of_a_picture_see_all_of_it(
    backend: NativeAttention, geometry: Geometry, dtype: torch.dtype, window: int | None
) -> None:
    """Of what is behind them; what is before, their windows still hide. Tokens of text see what they saw."""
    lengths = [*random_lengths(random.Random(str((geometry, window))), 3), 10, 70, 530]
    sequences = make_sequences(lengths, geometry, dtype, seed=8)
    check(backend, geometry, sequences, window=window, pictures=PICTURES)
    with_pictures, without = (
        Run(backend, geometry, sequences, window=window, pictures=pictures).at_once() for pictures in (PICTURES, ())
    )
    in_pictures = torch.tensor([any(start <= row < end for start, end in PICTURES) for row in range(140)])
    assert torch.equal(with_pictures[-1][:140][~in_pictures], without[-1][:140][~in_pictures])


def test_pictures_over_several_splits(backend: NativeAttention) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1500, 1281], geometry, torch.float32, seed=1)
    check(backend, geometry, sequences, pictures=((200, 1250), (1260, 1280)))
    check(backend, geometry, sequences, window=700, pictures=((200, 1250), (1260, 1280)))


def test_a_cap_that_no_score_comes_near_changes_little(backend: NativeAttention) -> None:
    geometry = Geometry(4, 2, 32, 16)
    sequences = make_sequences([140], geometry, torch.float32, seed=6)
    alone = Run(backend, geometry, sequences, softcap=1e4).at_once()
    assert_right(alone, sequences, **TOLERANCE[torch.float32], softcap=1e4)


@pytest.mark.parametrize("window", [600, 1000, 1290])
def test_a_window_over_several_splits(backend: NativeAttention, window: int) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1300, 1281], geometry, torch.float32, seed=1)
    alone = Run(backend, geometry, sequences, window=window).at_once()
    assert_right(alone, sequences, **TOLERANCE[torch.float32], window=window)
    torch.set_num_threads(3)
    run = Run(backend, geometry, sequences, seed=1, window=window)
    run.step([(0, 1100), (1, 1040)])
    for rows in (197, 2, 1):
        run.step([(0, rows), (1, rows)])
    run.step([(1, 41)])
    assert_equal(run.result(), alone)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_split_sequences_with_different_numbers_of_rows(backend: NativeAttention, rows: int) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1300, 900], geometry, torch.float32, seed=1)
    run = Run(backend, geometry, sequences)
    run.step([(0, 1299), (1, 900 - rows)])
    torch.set_num_threads(3)
    run.step([(0, 1), (1, rows)])
    assert_right(run.result(), sequences, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("spread", [1e-3, 200.0])
def test_flat_and_sharp_weights(backend: NativeAttention, spread: float) -> None:
    """Scores that hardly differ, and scores of which one outweighs all others by more than float32 can say."""
    geometry = Geometry(2, 1, 64, 16)
    sequences = make_sequences([140, 33], geometry, torch.float32, seed=2, spread=spread)
    assert_right(Run(backend, geometry, sequences).at_once(), sequences, 2e-4 if spread > 1 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *(pytest.param(each, marks=pytest.mark.wide) for each in WIDENED)])
def test_long_sequences_whatever_the_threads(backend: NativeAttention, dtype: torch.dtype) -> None:
    """Decoding few long sequences divides keys among threads, which nothing else does."""
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1700, 1030], geometry, dtype, seed=4)
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences).at_once()
    assert_right(alone, sequences, **TOLERANCE[dtype])
    run = Run(backend, geometry, sequences, seed=1)
    run.step([(0, 1690), (1, 1020)])
    for threads in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5):  # one row of each
        torch.set_num_threads(threads)
        run.step([(0, 1), (1, 1)])
    assert_equal(run.result(), alone)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bits_do_not_depend_on_block_sizes_that_fit_a_tile(backend: NativeAttention, dtype: torch.dtype) -> None:
    sequences = make_sequences([300, 17], Geometry(4, 2, 32, 16), dtype, seed=9)
    results = [Run(backend, Geometry(4, 2, 32, size), sequences).at_once() for size in (16, 2, 4, 8, 48, 128)]
    for result in results:
        assert_equal(result, results[0])


def test_broken_numbers_stay_visible_and_where_they_are(backend: NativeAttention) -> None:
    """A query that is NaN, and a key that is: all rows that see it are NaN, and no others."""
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([30, 50, 20], geometry, torch.bfloat16, seed=6)
    expected = Run(backend, geometry, sequences).at_once()
    sequences[1].query[40, 3] = torch.nan
    sequences[1].key[45, 0, 7] = torch.nan
    run = Run(backend, geometry, sequences)
    run.step([(0, 30), (1, 50), (2, 20)])
    broken = torch.zeros(50, 4, 64, dtype=torch.bool)
    broken[40, 3] = True
    broken[45:, :2] = True
    expected[1][broken.flatten(1)] = torch.nan
    for actual, wanted in zip(run.result(), expected, strict=True):
        assert torch.equal(actual.isnan(), wanted.isnan())
        assert torch.equal(actual.nan_to_num(), wanted.nan_to_num())


def test_every_instruction_set_agrees_with_the_others() -> None:
    geometry, backends = Geometry(4, 2, 64, 16), []
    for name in INSTRUCTION_SETS:
        with contextlib.suppress(KernelsUnavailableError):
            backends.append(NativeAttention(load_kernels(name)))
    sequences = make_sequences([200], geometry, torch.float32, seed=7)
    *others, portable = (Run(backend, geometry, sequences).at_once()[0] for backend in backends)
    for result in others:
        torch.testing.assert_close(result, portable, atol=1e-5, rtol=0)


def test_numerics_name_what_decides_bits() -> None:
    def numerics(block_size: int, dtype: torch.dtype, instruction_set: str | None = None) -> str:
        kernels = load_kernels(instruction_set)
        return NativeAttention(kernels).numerics(KVCacheSpec((AttentionSpec(1, 16),), block_size, dtype))

    same = {numerics(size, torch.bfloat16) for size in (2, 4, 8, 16, 48, 128)} | {numerics(1, torch.float32)}
    assert len(same) == 1
    other = {numerics(size, torch.bfloat16) for size in (1, 3, 24, 40)} | {numerics(16, torch.float32, "portable")}
    assert len(same | other) == 6


@pytest.mark.parametrize("spec", [MLAAttentionSpec(24, 8), AttentionSpec(2, 24)], ids=str)
def test_padded_widths_alone_are_taken(spec: LayerCacheSpec) -> None:
    with pytest.raises(ValueError, match=r"the widths of .*Spec\(.*\) are not padded to multiples of 16"):
        NativeAttention.allocate(KVCacheSpec((spec,), 16, torch.float32), 1, CPU)
