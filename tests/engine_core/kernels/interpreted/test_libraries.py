"""Attention by libraries that need a GPU: what they are given means what it should, by their documentation."""

from __future__ import annotations

import random

import pytest
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.attention.flash_attention import FlashAttention, varlen_function
from engine_core.attention.flashinfer import FlashInferAttention, HeadsOfModel
from tests.engine_core.attention.sequences import CPU, Geometry, Run, assert_right, make_sequences
from tests.engine_core.kernels.interpreted.libraries import Library, documented_varlen

HALF = torch.float16


def flashinfer(geometry: Geometry, max_pages: int = 40) -> FlashInferAttention:
    heads = HeadsOfModel(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim, HALF)
    return FlashInferAttention(Library, heads, geometry.block_size, max_pages, CPU, workspace=16)


CASES = [
    (FlashAttention(documented_varlen), Geometry(4, 2, 64, 256), [1, 9, 300]),
    (flashinfer(Geometry(4, 2, 64, 16)), Geometry(4, 2, 64, 16), [1, 9, 70]),
    (flashinfer(Geometry(7, 1, 128, 64)), Geometry(7, 1, 128, 64), [64, 65, 130]),
]


@pytest.mark.skipif(varlen_function() is None, reason="this torch has no varlen_attn with block tables")
@pytest.mark.parametrize(("backend", "geometry", "lengths"), CASES, ids=lambda value: type(value).__name__)
def test_random_steps(backend: AttentionBackend, geometry: Geometry, lengths: list[int]) -> None:
    sequences = make_sequences(lengths, geometry, HALF, seed=1)
    outputs = Run(backend, geometry, sequences, seed=2).in_random_steps(random.Random(3))
    assert_right(outputs, sequences, 3e-3)


def test_graphs_of_flashinfer_find_every_plan_where_they_were_captured_with() -> None:
    geometry = Geometry(4, 2, 64, 16)
    backend = flashinfer(geometry)
    run = Run(backend, geometry, make_sequences([40, 17], geometry, HALF, seed=4))
    run.step([(0, 38), (1, 15)])
    run.cache.nan_to_num_(0.0)  # memory of a GPU's that nobody has written is not NaN alone either
    nothing = AttentionMetadata(
        torch.zeros(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), torch.empty(0, 1, dtype=torch.int32),
        torch.empty(0, dtype=torch.int64), 1, 0,
    )  # fmt: skip
    backend.plan(nothing, 4)
    captured = backend._planned
    for position in (38, 15), (39, 16):
        before = run.cache.clone()
        metadata = run.step([(0, 1), (1, 1)])
        expected = torch.cat([outputs[-1] for outputs in run.outputs])
        backend.plan(metadata, 4)
        assert backend._planned is captured
        query = torch.stack([known.query[at] for known, at in zip(run.sequences, position, strict=True)])
        made = captured.run(torch.cat([query, query]), (run.cache[0], run.cache[1])).flatten(1)
        torch.testing.assert_close(made[:2], expected)
        assert not torch.equal(before, run.cache)
    assert captured.memory[1] is backend._any_step.memory[1]
