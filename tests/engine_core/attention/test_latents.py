"""Attention over latents, for every instruction set of this machine: right against float64 arithmetic without absorbed
projections, and for each row the same bits whatever the other rows, the chunks and the threads.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.native import NativeAttention
from engine_core.kernels.library import load_kernels
from tests.engine_core.attention.sequences import Run, Sizes, assert_equal, assert_right, make_latents

pytestmark = pytest.mark.usefixtures("restored_threads")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}
SMALL, USUAL = Sizes(4, 32, 16, 16), Sizes(16, 512, 64, 16)
CASES = [
    (SMALL, torch.float32),
    (Sizes(1, 16, 16, 1), torch.float16),
    (Sizes(6, 48, 32, 7), torch.bfloat16),
    (Sizes(6, 48, 32, 7), torch.float32),
    (USUAL, torch.bfloat16),
    *(
        pytest.param(sizes, dtype, marks=pytest.mark.wide)
        for sizes in (SMALL, Sizes(128, 512, 64, 128), Sizes(3, 80, 16, 24), Sizes(20, 512, 64, 8))
        for dtype in TOLERANCE
    ),
]


@pytest.mark.parametrize(("sizes", "dtype"), CASES, ids=str)
def test_latents_against_float64_and_bitwise(backend: AttentionBackend, sizes: Sizes, dtype: torch.dtype) -> None:
    sequences = make_latents([1, 37, 16, 200] if sizes.latent < 500 else [1, 37, 150], sizes, dtype)
    torch.set_num_threads(1)
    alone = Run(backend, sizes, sequences).at_once()
    assert_right(alone, sequences, TOLERANCE[dtype], TOLERANCE[dtype])
    for threads in (1, 3):
        torch.set_num_threads(threads)
        together = Run(backend, sizes, sequences, seed=threads).in_random_steps(random.Random(threads))
        if backend.batch_invariant:
            assert_equal(together, alone)
        else:
            assert_right(together, sequences, TOLERANCE[dtype], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bits_do_not_depend_on_block_sizes_that_fit_a_tile(dtype: torch.dtype) -> None:
    backend, sequences = NativeAttention(load_kernels()), make_latents([300, 17], SMALL, dtype)
    results = [Run(backend, replace(SMALL, block_size=size), sequences).at_once() for size in (16, 2, 8, 48, 128)]
    for result in results:
        assert_equal(result, results[0])


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_long_sequences_are_split_among_threads(rows: int) -> None:
    backend, sequences = NativeAttention(load_kernels()), make_latents([1300, 40], SMALL, torch.bfloat16)
    torch.set_num_threads(1)
    alone = Run(backend, SMALL, sequences).at_once()
    torch.set_num_threads(3)
    run = Run(backend, SMALL, sequences, seed=2)
    run.step([(0, 1300 - rows), (1, 39)])
    run.step([(0, rows), (1, 1)])
    assert_equal(run.result(), alone)
