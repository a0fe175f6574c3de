"""What every backend promises of a cache: what is written, how much memory it takes, and who may share it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels.library import load_kernels
from engine_core.kv_cache_interface import AttentionSpec, KVCacheGroup, LayerCacheSpec, MLAAttentionSpec, group_layers
from tests.engine_core.attention.sequences import CPU, Geometry, Run, assert_equal, assert_right, make_sequences

of_fastest = pytest.mark.parametrize(
    "backend", [NativeAttention(load_kernels()), TorchAttention()], ids=["native", "torch"]
)
FULL = Geometry(4, 1, 64, 16)
WINDOWED = {
    "equal bytes": Geometry(4, 2, 32, 16),
    "fewer bytes": Geometry(6, 2, 16, 16),
    "more bytes": Geometry(8, 4, 48, 16),
}
WINDOW = 21


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [16, 24, 1])
def test_exactly_the_tokens_of_the_step_are_written(
    backend: AttentionBackend, block_size: int, dtype: torch.dtype
) -> None:
    geometry = Geometry(4, 2, 32, block_size)
    run = Run(backend, geometry, make_sequences([40, 7, 129], geometry, dtype, seed=5))
    run.step([(0, 37), (2, 1)])
    before, cached = run.memory().clone(), run.blocks().isnan()
    metadata = run.step([(0, 3), (1, 1), (2, 128)])
    after = run.memory()
    written = before.isnan() & ~after.isnan()
    assert int(written.sum()) == (3 + 1 + 128) * 2 * geometry.num_kv_heads * geometry.head_dim
    assert torch.equal(before[~written].nan_to_num(), after[~written].nan_to_num())
    blocks = (cached & ~run.blocks().isnan()).flatten(1).any(1).nonzero().flatten()
    assert blocks.tolist() == sorted(set((metadata.slot_mapping // block_size).tolist()))


@dataclass
class ReadingAgain:
    """A backend that attends again in each step, with queries alone."""

    backend: AttentionBackend
    again: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        output = self.backend.forward(query, key, value, kv_cache, metadata, options)
        written = kv_cache.clone().view(torch.int16)
        same = self.backend.forward(query, key[:, :0], value[:, :0], kv_cache, metadata, options)
        assert torch.equal(same, output)
        assert torch.equal(kv_cache.clone().view(torch.int16), written)
        self.again += 1
        return output


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@of_fastest
def test_queries_alone_see_what_was_written(backend: AttentionBackend, dtype: torch.dtype, window: int | None) -> None:
    geometry = Geometry(6, 2, 32, 16)
    reading: Any = ReadingAgain(backend)
    run = Run(reading, geometry, make_sequences([1, 40, 150, 700], geometry, dtype, seed=2), window=window)
    run.in_random_steps(random.Random(1))
    assert reading.again > 4


def runs_on_one_memory(backend: AttentionBackend, geometries: list[Geometry], dtype: torch.dtype) -> list[Run]:
    """A layer with all tokens, then one with a window, in one pool of blocks."""
    windows = [None, WINDOW]
    runs = [
        Run(backend, geometry, make_sequences([1, 40, 150], geometry, dtype, seed=place), window=window)
        for place, (geometry, window) in enumerate(zip(geometries, windows, strict=True))
    ]
    specs = tuple(run.sequences[0].spec for run in runs)
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
@of_fastest
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
        assert_equal(run.result(), other.result())
        tolerance = 1e-5 if dtype == torch.float32 else 1.5e-2
        assert_right(run.result(), run.sequences, tolerance, tolerance, window=run.window)


def test_a_block_is_copied_with_all_that_unlike_layers_keep_there() -> None:
    specs = AttentionSpec(1, 64), AttentionSpec(2, 16), AttentionSpec(1, 64)
    spec = KVCacheSpec(specs, 16, torch.float32, group_layers([None, 8, 8], specs))
    caches = TorchAttention.allocate(spec, 5, CPU)
    largest = next(cache for cache, layer in zip(caches, specs, strict=True) if layer.elements == spec.elements)
    for own in caches:
        largest.copy_(torch.randn(largest.shape))
        before = largest.clone()
        TorchAttention.copy_blocks(own, torch.tensor([1, 2]), torch.tensor([3, 1]))
        assert torch.equal(largest, before[:, [0, 2, 2, 1, 4]])


def test_layers_that_keep_unlike_numbers_are_in_groups_of_their_own() -> None:
    full, windowed = AttentionSpec(1, 64), AttentionSpec(2, 32)
    groups = group_layers([None, 8, None, 8], [full, windowed, windowed, windowed])
    assert groups == (KVCacheGroup((0,)), KVCacheGroup((1,), 8), KVCacheGroup((3,), 8), KVCacheGroup((2,)))
    assert group_layers([None] * 2, [full] * 2) == group_layers([None] * 2)


@pytest.mark.parametrize(
    ("specs", "windows", "block_size", "places", "elements"),
    [
        ((AttentionSpec(2, 32),) * 3, [None] * 3, 16, 3, 2 * 2 * 32),
        ((AttentionSpec(2, 32),) * 3, [None] * 3, 24, 3, 2 * 2 * 32),
        ((AttentionSpec(1, 64), AttentionSpec(2, 48)) * 2, [None, 8] * 2, 16, 2, 2 * 2 * 48),  # of the largest
        ((MLAAttentionSpec(512, 64),) * 5, [None] * 5, 16, 5, 512 + 64),  # a latent is kept once
    ],
)
@pytest.mark.parametrize("backend", [NativeAttention, TorchAttention])
def test_a_block_takes_the_bytes_that_are_allocated(
    backend: type[AttentionBackend],
    specs: tuple[LayerCacheSpec, ...],
    windows: list[int | None],
    block_size: int,
    places: int,
    elements: int,
) -> None:
    spec = KVCacheSpec(specs, block_size, torch.bfloat16, group_layers(windows, specs))
    assert backend.bytes_per_block(spec) == places * block_size * elements * 2
    caches = backend.allocate(spec, 5, CPU)
    memories = {cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes() for cache in caches}
    assert (len(caches), len(memories)) == (len(specs), places)
    assert sum(memories.values()) == 5 * backend.bytes_per_block(spec)
