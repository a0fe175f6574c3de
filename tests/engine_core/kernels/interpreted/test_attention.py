"""Paged attention by Triton against float64, over random shapes, block tables, chunks and batches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from engine_core.attention import triton as triton_attention
from engine_core.attention.base import AttentionOptions
from engine_core.attention.triton import TritonAttention
from tests.engine_core.attention.sequences import (
    Geometry,
    Run,
    Sizes,
    assert_equal,
    assert_right,
    make_latents,
    make_sequences,
)

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
CASES = [
    (Geometry(2, 1, 32, 16), torch.float32),
    (Geometry(7, 1, 80, 32), torch.float16),
    pytest.param(Geometry(4, 2, 64, 16), torch.float16, marks=pytest.mark.wide),
    pytest.param(Geometry(8, 1, 128, 64), torch.bfloat16, marks=pytest.mark.wide),
    pytest.param(Geometry(3, 3, 256, 16), torch.bfloat16, marks=pytest.mark.wide),
]


@pytest.fixture(autouse=True)
def _short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences have several."""
    monkeypatch.setattr(triton_attention, "_SHORTEST_SPLIT", 64)


def backend(uniform: bool = False) -> TritonAttention:
    return TritonAttention(max_model_len=200, processors=1, uniform=uniform)


@pytest.mark.parametrize(("geometry", "dtype"), CASES, ids=str)
def test_random_steps(geometry: Geometry, dtype: torch.dtype) -> None:
    rng = random.Random(str((geometry, dtype)))
    lengths = [1, rng.randint(2, 20), rng.randint(70, 90)]
    sequences = make_sequences(lengths, geometry, dtype, seed=1)
    outputs = Run(backend(), geometry, sequences, seed=2).in_random_steps(rng)
    assert_right(outputs, sequences, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.wide), torch.bfloat16], ids=str)
def test_uniform_tiles_give_equal_bits_however_rows_are_cut_and_batched(dtype: torch.dtype) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([5, 75], geometry, dtype, seed=3)
    expected = Run(backend(uniform=True), geometry, sequences).at_once()
    outputs = Run(backend(uniform=True), geometry, sequences, seed=1).in_random_steps(random.Random(4))
    assert_equal(outputs, expected)


def test_a_row_has_equal_bits_whatever_else_is_in_its_step() -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([90, 140, 33, 1], geometry, torch.float16, seed=5)
    chunks = {0: [60, 29, 1], 1: [139, 1], 2: [32, 1], 3: [1]}
    alone, together = Run(backend(), geometry, sequences), Run(backend(), geometry, sequences, seed=9)
    for seq, counts in chunks.items():
        for count in counts:
            alone.step([(seq, count)])
    together.step([(1, 139), (0, 60)])
    together.step([(3, 1), (0, 29), (2, 32)])
    together.step([(2, 1), (0, 1), (1, 1)])
    assert_equal(together.result(), alone.result())


@pytest.mark.parametrize(
    ("window", "chunked"),
    [(20, False), *(pytest.param(*way, marks=pytest.mark.wide) for way in [(1, False), (70, False), (32, True)])],
)
def test_windows(window: int, chunked: bool) -> None:
    """Blocks behind a window are poisoned as soon as no row of a step sees them."""
    geometry = Geometry(2, 1, 32, 16)
    sequences = make_sequences([5, 21, 90], geometry, torch.float32, seed=window)
    alone = Run(backend(uniform=True), geometry, sequences, window=window, chunked=chunked).at_once()
    run = Run(backend(uniform=True), geometry, sequences, seed=1, window=window, chunked=chunked)
    for step in ([(2, 60), (1, 20)], [(2, 28), (0, 4)], [(2, 1), (1, 1), (0, 1)], [(2, 1)]):
        run.step(step)
    assert_equal(run.result(), alone)
    assert_right(alone, sequences, 1e-5, window=window, chunked=chunked)


@pytest.mark.parametrize("window", [20, pytest.param(None, marks=pytest.mark.wide)])
def test_tokens_of_a_picture_see_all_of_it(window: int | None) -> None:
    geometry, pictures = Geometry(2, 1, 32, 16), ((0, 2), (4, 5), (7, 40), (40, 85))
    sequences = make_sequences([5, 41, 90], geometry, torch.float32, seed=7)
    alone = Run(backend(uniform=True), geometry, sequences, window=window, pictures=pictures).at_once()
    run = Run(backend(uniform=True), geometry, sequences, seed=1, window=window, pictures=pictures)
    for step in ([(2, 5), (1, 40)], [(2, 83), (0, 4)], [(2, 1), (1, 1), (0, 1)], [(2, 1)]):
        run.step(step)
    assert_equal(run.result(), alone)
    assert_right(alone, sequences, 1e-5, window=window, pictures=pictures)


@pytest.mark.parametrize("softcap", [5.0, pytest.param(None, marks=pytest.mark.wide)])
def test_capped_scores_and_sinks(softcap: float | None) -> None:
    geometry, sinks = Geometry(4, 2, 32, 16), torch.tensor([-200.0, 0.0, 5.0, 200.0])
    sequences = make_sequences([5, 50], geometry, torch.float32, seed=2)
    run = Run(backend(uniform=True), geometry, sequences, softcap=softcap, sinks=sinks)
    for step in ([(1, 48), (0, 4)], [(1, 1), (0, 1)], [(1, 1)]):
        run.step(step)
    assert_right(run.result(), sequences, 1e-5, softcap=softcap, sinks=sinks)


def test_padding_reads_and_writes_nothing() -> None:
    geometry = Geometry(4, 2, 64, 16)
    run = Run(backend(), geometry, make_sequences([20, 9], geometry, torch.float16, seed=6))
    run.step([(0, 19), (1, 8)])
    before = run.cache.clone()
    metadata = run.step([(0, 1), (1, 1)])
    after, expected = run.cache.clone(), [outputs[-1] for outputs in run.outputs]
    run.cache.copy_(before)
    padded = replace(
        metadata,
        query_starts=torch.arange(5, dtype=torch.int32),
        seq_lens=torch.cat([metadata.seq_lens, torch.zeros(2, dtype=torch.int32)]),
        block_tables=torch.cat([metadata.block_tables, torch.full_like(metadata.block_tables, 2**31 - 1)]),
        slot_mapping=torch.cat([metadata.slot_mapping, torch.tensor([-1, -1])]),
    )
    rows = [torch.cat([getattr(known, name)[-1:] for known in run.sequences]) for name in ("query", "key", "value")]
    output = backend().forward(*(torch.cat([x, x]) for x in rows), run.cache, padded, AttentionOptions(64**-0.5))
    assert torch.equal(run.cache.nan_to_num(7.0), after.nan_to_num(7.0))
    assert torch.equal(output[:2], torch.cat(expected))
    assert not output[2:].any()


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        (Sizes(4, 32, 16, 16), torch.float32),
        pytest.param(Sizes(6, 48, 32, 8), torch.bfloat16),
        pytest.param(Sizes(20, 80, 16, 16), torch.float16, marks=pytest.mark.wide),
        pytest.param(Sizes(16, 512, 64, 16), torch.bfloat16, marks=pytest.mark.wide),
    ],
    ids=str,
)
def test_latents(sizes: Sizes, dtype: torch.dtype) -> None:
    sequences = make_latents([1, 19, 80], sizes, dtype)
    alone = Run(backend(uniform=True), sizes, sequences).at_once()
    assert_right(alone, sequences, TOLERANCE[dtype], TOLERANCE[dtype])
    assert_equal(Run(backend(uniform=True), sizes, sequences, seed=1).in_random_steps(random.Random(2)), alone)
