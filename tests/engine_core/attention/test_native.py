"""The native kernels, for every instruction set of this machine: right, and the same bits whatever the steps are."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.kernels.library import INSTRUCTION_SETS, KernelsUnavailableError, load_kernels
from engine_core.kv_cache_interface import AttentionSpec, group_layers
from tests.engine_core.attention.sequences import CPU, Geometry, Run, make_sequences

pytestmark = pytest.mark.long

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

# bfloat16 has products of its own; the other types are widened alike when they are read, so some sizes show each.
FEW = {torch.bfloat16: range(9), torch.float32: (0, 2, 4), torch.float16: (1, 3, 5)}
CASES = [
    pytest.param(geometry, dtype, marks=() if index in FEW[dtype] else pytest.mark.wide)
    for index, geometry in enumerate(GEOMETRIES)
    for dtype in TOLERANCE
]


def runs_here(instruction_set: str) -> bool:
    try:
        load_kernels(instruction_set)
    except KernelsUnavailableError as error:
        if "processor" not in str(error):
            raise
        return False
    return True


@pytest.fixture(params=INSTRUCTION_SETS)
def backend(request: pytest.FixtureRequest) -> NativeAttention:
    if not runs_here(request.param):
        pytest.skip(f"this processor has no {request.param}")
    return NativeAttention(load_kernels(request.param))


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Whatever torch allocates is NaN until written; and threads are as before."""
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def test_unwritten_memory_is_poisoned() -> None:
    assert torch.ones(1, dtype=torch.bfloat16).new_empty(100, 16).isnan().all()


def random_lengths(rng: random.Random, most: int) -> list[int]:
    edges = [1, 2, 15, 16, 17, 31, 100, 127, 128, 129, 255, 257, 300]
    return [rng.choice(edges) for _ in range(rng.randint(1, most))]


@pytest.mark.parametrize(("geometry", "dtype"), CASES, ids=str)
def test_against_float64(backend: NativeAttention, geometry: Geometry, dtype: torch.dtype) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        sequences = make_sequences(random_lengths(rng, 8), geometry, dtype, seed)
        run = Run(backend, geometry, sequences, seed)
        for actual, known in zip(run.in_random_steps(rng), sequences, strict=True):
            assert actual.dtype == dtype
            expected = known.expected(geometry.head_dim**-0.5)
            torch.testing.assert_close(actual.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_long_sequences_are_split(backend: NativeAttention, dtype: torch.dtype) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1300], geometry, dtype, seed=1)
    run = Run(backend, geometry, sequences)
    run.step([(0, 1299)])
    torch.set_num_threads(3)
    run.step([(0, 1)])
    expected = sequences[0].expected(geometry.head_dim**-0.5)
    torch.testing.assert_close(run.result()[0].double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("window", [1, 33, 129])
@pytest.mark.parametrize(("geometry", "dtype"), WINDOWED, ids=str)
def test_windows_against_float64_and_bitwise(
    backend: NativeAttention, geometry: Geometry, dtype: torch.dtype, window: int
) -> None:
    """Blocks behind a window are poisoned as soon as no row of a step sees them."""
    rng = random.Random(str((geometry, window)))
    sequences = make_sequences([*random_lengths(rng, 3), window, window + 1, 530], geometry, dtype, seed=window)
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences, window=window).at_once()
    for actual, known in zip(alone, sequences, strict=True):
        expected = known.expected(geometry.head_dim**-0.5, window)
        torch.testing.assert_close(actual.double(), expected, **TOLERANCE[dtype])
    for threads in (1, 3):
        torch.set_num_threads(threads)
        together = Run(backend, geometry, sequences, seed=threads, window=window).in_random_steps(rng)
        for actual, expected in zip(together, alone, strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize(("geometry", "dtype"), WINDOWED, ids=str)
def test_capped_scores_and_sinks_against_float64_and_bitwise(
    backend: NativeAttention, geometry: Geometry, dtype: torch.dtype, softcap: float | None, sunk: bool
) -> None:
    """One sink is too small to matter, one so large that it takes nearly everything."""
    rng = random.Random(str((geometry, softcap, sunk)))
    sequences = make_sequences([*random_lengths(rng, 3), 1, 530], geometry, dtype, seed=4)
    sinks = torch.linspace(-200.0, 200.0, geometry.num_heads) if sunk else None
    options = {"window": 40, "softcap": softcap, "sinks": sinks}
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences, **options).at_once()
    for actual, known in zip(alone, sequences, strict=True):
        expected = known.expected(geometry.head_dim**-0.5, **options)
        torch.testing.assert_close(actual.double(), expected, **TOLERANCE[dtype])
    torch.set_num_threads(3)
    for actual, one in zip(
        Run(backend, geometry, sequences, seed=3, **options).in_random_steps(rng), alone, strict=True
    ):
        assert torch.equal(actual, one)


def test_a_cap_that_no_score_comes_near_changes_little(backend: NativeAttention) -> None:
    geometry = Geometry(4, 2, 32, 16)
    sequences = make_sequences([140], geometry, torch.float32, seed=6)
    [actual] = Run(backend, geometry, sequences, softcap=1e4).at_once()
    expected = sequences[0].expected(geometry.head_dim**-0.5, softcap=1e4)
    torch.testing.assert_close(actual.double(), expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("window", [600, 1000, 1290])
def test_a_window_over_several_splits(backend: NativeAttention, window: int) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1300, 1281], geometry, torch.float32, seed=1)
    alone = Run(backend, geometry, sequences, window=window).at_once()
    torch.set_num_threads(3)
    run = Run(backend, geometry, sequences, seed=1, window=window)
    run.step([(0, 1100), (1, 1040)])
    for rows in (197, 2, 1):
        run.step([(0, rows), (1, rows)])
    run.step([(1, 41)])
    for one, other, known in zip(alone, run.result(), sequences, strict=True):
        assert torch.equal(one, other)
        expected = known.expected(geometry.head_dim**-0.5, window)
        torch.testing.assert_close(one.double(), expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_split_sequences_with_different_numbers_of_rows(backend: NativeAttention, rows: int) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1300, 900], geometry, torch.float32, seed=1)
    run = Run(backend, geometry, sequences)
    run.step([(0, 1299), (1, 900 - rows)])
    torch.set_num_threads(3)
    run.step([(0, 1), (1, rows)])
    for actual, known in zip(run.result(), sequences, strict=True):
        torch.testing.assert_close(actual.double(), known.expected(geometry.head_dim**-0.5), **TOLERANCE[torch.float32])


@pytest.mark.parametrize("spread", [1e-3, 200.0])
def test_flat_and_sharp_weights(backend: NativeAttention, spread: float) -> None:
    """Scores that hardly differ, and scores of which one outweighs all others by more than float32 can say."""
    geometry = Geometry(2, 1, 64, 16)
    sequences = make_sequences([140, 33], geometry, torch.float32, seed=2, spread=spread)
    for actual, known in zip(Run(backend, geometry, sequences).at_once(), sequences, strict=True):
        torch.testing.assert_close(actual.double(), known.expected(0.125), atol=2e-4 if spread > 1 else 1e-6, rtol=0)


@pytest.mark.parametrize(("geometry", "dtype"), CASES, ids=str)
def test_bits_do_not_depend_on_the_steps(backend: NativeAttention, geometry: Geometry, dtype: torch.dtype) -> None:
    rng = random.Random(str(geometry))
    sequences = make_sequences([*random_lengths(rng, 4), 530], geometry, dtype, seed=3)
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences).at_once()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        together = Run(backend, geometry, sequences, seed=threads).in_random_steps(rng)
        for actual, expected in zip(together, alone, strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bits_of_long_sequences_do_not_depend_on_threads(backend: NativeAttention, dtype: torch.dtype) -> None:
    """Decoding few long sequences divides keys among threads, which nothing else does."""
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([1700, 1030], geometry, dtype, seed=4)
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences).at_once()
    run = Run(backend, geometry, sequences, seed=1)
    run.step([(0, 1690), (1, 1020)])
    for threads in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5):
        torch.set_num_threads(threads)
        run.step([(0, 1), (1, 1)])
    for actual, expected in zip(run.result(), alone, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bits_do_not_depend_on_block_sizes_that_fit_a_tile(backend: NativeAttention, dtype: torch.dtype) -> None:
    sequences = make_sequences([300, 17], Geometry(4, 2, 32, 16), dtype, seed=9)
    results = [Run(backend, Geometry(4, 2, 32, size), sequences).at_once() for size in (16, 2, 4, 8, 48, 128)]
    for result in results:
        for actual, expected in zip(result, results[0], strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block_size", [16, 24, 1])
def test_exactly_the_tokens_of_the_step_are_written(
    backend: NativeAttention, block_size: int, dtype: torch.dtype
) -> None:
    geometry = Geometry(4, 2, 32, block_size)
    sequences = make_sequences([40, 7, 129], geometry, dtype, seed=5)
    run = Run(backend, geometry, sequences)
    run.step([(0, 37), (2, 1)])
    before = run.memory().clone()
    metadata = run.step([(0, 3), (1, 1), (2, 128)])
    after = run.memory()
    written = before.isnan() & ~after.isnan()
    assert int(written.sum()) == (3 + 1 + 128) * 2 * geometry.num_kv_heads * geometry.head_dim
    assert torch.equal(before[~written].nan_to_num(), after[~written].nan_to_num())
    blocks = written.view(len(run.cache), -1).any(1).nonzero().flatten()
    assert blocks.tolist() == sorted(set((metadata.slot_mapping // block_size).tolist()))


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
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([200], geometry, torch.float32, seed=7)
    names = [name for name in INSTRUCTION_SETS if runs_here(name)]
    assert names[-1] == "portable"
    results = [Run(NativeAttention(load_kernels(name)), geometry, sequences).at_once()[0] for name in names]
    for result in results:
        torch.testing.assert_close(result, results[-1], atol=1e-5, rtol=0)


def test_bytes_per_block_are_what_is_allocated() -> None:
    spec = KVCacheSpec((AttentionSpec(2, 32),) * 3, 24, torch.bfloat16, group_layers([None] * 3))
    caches = NativeAttention.allocate(spec, 10, CPU)
    assert len(caches) == 3
    assert sum(cache.untyped_storage().nbytes() for cache in caches) == 10 * NativeAttention.bytes_per_block(spec)
