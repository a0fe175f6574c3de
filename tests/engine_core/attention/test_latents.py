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


def test_absorbed_projections_equal_keys_and_values_made_from_latents(backend: AttentionBackend) -> None:
    """The identity that all of this stands on: Wₖ may be applied to queries, Wᵥ to the result."""
    sizes, generator = Sizes(3, 32, 16, 16), torch.Generator().manual_seed(5)
    [known] = make_latents([30], sizes, torch.float32)
    to_key, to_value = (torch.randn(3, count, 32, generator=generator).double() for count in (16, 24))
    query = torch.randn(30, 3, 16, generator=generator).double()
    known.query = torch.einsum("qhn,hnr->qhr", query, to_key).float()
    [output] = Run(backend, sizes, [known]).at_once()
    latent, rope = known.latent.double(), known.rope[:, 16:].double()
    keys, values = (torch.einsum("kr,hnr->khn", latent, each) for each in (to_key, to_value))
    scores = torch.einsum("qhn,khn->hqk", query, keys)
    scores += torch.einsum("qhp,kp->hqk", known.query_rope[..., 32:].double(), rope)
    hidden = torch.ones(30, 30, dtype=torch.bool).triu(1)
    weights = (known.scale * scores).masked_fill(hidden, -torch.inf).softmax(-1)
    expected = torch.einsum("hqk,khn->qhn", weights, values)
    actual = torch.einsum("qhr,hnr->qhn", output.double(), to_value)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
