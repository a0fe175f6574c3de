"""Layers that keep unlike numbers of a token share one pool of blocks, and none overwrites another's."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from engine_core.attention.base import AttentionBackend, KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels.library import load_kernels
from engine_core.kv_cache_interface import AttentionSpec, KVCacheGroup, MLAAttentionSpec, group_layers
from tests.engine_core.attention.sequences import CPU, Geometry, Run, make_sequences

FULL = Geometry(4, 1, 64, 16)
WINDOWED = {
    "equal bytes": Geometry(4, 2, 32, 16),
    "fewer bytes": Geometry(6, 2, 16, 16),
    "more bytes": Geometry(8, 4, 48, 16),
}
WINDOW = 21


def spec_of(geometry: Geometry) -> AttentionSpec:
    return AttentionSpec(geometry.num_kv_heads, geometry.head_dim)


def runs_on_one_memory(backend: AttentionBackend, geometries: list[Geometry], dtype: torch.dtype) -> list[Run]:
    """A layer with all tokens, then one with a window, in one pool of blocks."""
    windows = [None, WINDOW]
    runs = [
        Run(backend, geometry, make_sequences([1, 40, 150], geometry, dtype, seed=place), window=window)
        for place, (geometry, window) in enumerate(zip(geometries, windows, strict=True))
    ]
    specs = tuple(map(spec_of, geometries))
    spec = KVCacheSpec(specs, geometries[0].block_size, dtype, group_layers(windows, specs))
    assert spec.num_places == 1
    num_blocks = sum(run.num_blocks for run in runs)
    caches = backend.allocate(spec, num_blocks, CPU)
    assert caches[0].untyped_storage().data_ptr() == caches[1].untyped_storage().data_ptr()
    assert caches[0].untyped_storage().nbytes() == num_blocks * backend.bytes_per_block(spec)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(7)).int()
    for run, cache, own in zip(runs, caches, order.chunk(2), strict=True):
        run.cache, run.num_blocks = cache, num_blocks
        run.tables = list(own.split([len(table) for table in run.tables] + [len(own) - sum(map(len, run.tables))]))
        run.memory().fill_(torch.nan)
    return runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [NativeAttention(load_kernels()), TorchAttention()], ids=["native", "torch"])
@pytest.mark.parametrize("windowed", WINDOWED)
def test_unlike_layers_in_one_pool(windowed: str, backend: AttentionBackend, dtype: torch.dtype) -> None:
    """As right as in a pool of their own, and with the same bits."""
    geometries, rng = [FULL, WINDOWED[windowed]], random.Random(1)
    runs = runs_on_one_memory(backend, geometries, dtype)
    alone = [replace(run, seed=3) for run in runs]
    while unfinished := runs[0].unfinished():
        work = []
        for s in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            rest = len(runs[0].sequences[s]) - runs[0].computed[s]
            work.append((s, rng.choice([1, rest, (rest + 1) // 2])))
        for run in (*runs, *alone):
            run.step(work)
    for run, other in zip(runs, alone, strict=True):
        for known, output, expected in zip(run.sequences, run.result(), other.result(), strict=True):
            assert torch.equal(output, expected)
            right = known.expected(run.geometry.head_dim**-0.5, run.window)
            tolerance = 1e-5 if dtype == torch.float32 else 1.5e-2
            torch.testing.assert_close(output.double(), right, atol=tolerance, rtol=tolerance)


def test_layers_that_keep_unlike_numbers_are_in_groups_of_their_own() -> None:
    full, windowed = AttentionSpec(1, 64), AttentionSpec(2, 32)
    groups = group_layers([None, 8, None, 8], [full, windowed, windowed, windowed])
    assert groups == (
        KVCacheGroup((0,)),
        KVCacheGroup((1,), 8),
        KVCacheGroup((3,), 8),
        KVCacheGroup((2,)),
    )
    assert group_layers([None] * 2, [full] * 2) == group_layers([None] * 2)


@pytest.mark.parametrize("backend", [NativeAttention, TorchAttention])
def test_a_block_takes_the_bytes_of_the_largest(backend: type[AttentionBackend]) -> None:
    specs = (AttentionSpec(1, 64), AttentionSpec(2, 48), AttentionSpec(1, 64), AttentionSpec(2, 48))
    spec = KVCacheSpec(specs, 16, torch.bfloat16, group_layers([None, 8, None, 8], specs))
    assert backend.bytes_per_block(spec) == 2 * 16 * (2 * 2 * 48) * 2
    memories = {cache.untyped_storage().data_ptr() for cache in backend.allocate(spec, 5, CPU)}
    assert len(memories) == 2


def test_widths_are_padded_apart() -> None:
    def pad(width: int) -> int:
        return -(-width // 16) * 16

    assert AttentionSpec(3, 24).padded(pad) == AttentionSpec(3, 32)
    assert MLAAttentionSpec(20, 8).padded(pad) == MLAAttentionSpec(32, 16)
    assert MLAAttentionSpec(32, 16).elements == 48
