"""Paged attention against float64 softmax over each sequence's own keys, whatever the step and the cache look like."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from engine_core.attention.base import AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kv_cache_interface import AttentionSpec, group_layers
from tests.engine_core.attention.sequences import Geometry, Run, make_sequences

CPU = torch.device("cpu")
GEOMETRIES = [  # query heads, key/value heads, head size, block size
    (4, 2, 64, 16),
    (7, 1, 16, 16),
    (4, 4, 24, 8),
    (12, 1, 32, 256),
    (20, 2, 6, 1),
    (6, 2, 128, 48),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3}


@dataclass
class Step:
    """Sequences of known keys and values, of which the last ``counts`` tokens are computed in this step."""

    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    counts: list[int]
    cache: torch.Tensor
    metadata: AttentionMetadata

    def run(self) -> torch.Tensor:
        new_keys = torch.cat([keys[len(keys) - count :] for keys, count in zip(self.keys, self.counts, strict=True)])
        new_values = torch.cat(
            [vals[len(vals) - count :] for vals, count in zip(self.values, self.counts, strict=True)]
        )
        options = AttentionOptions(self.query.shape[-1] ** -0.5)
        return TorchAttention().forward(self.query, new_keys, new_values, self.cache, self.metadata, options)

    def expected(self) -> torch.Tensor:
        outputs = []
        queries = self.query.split(self.counts)
        for query, keys, values in zip(queries, self.keys, self.values, strict=True):
            group = query.shape[1] // keys.shape[1]
            scores = torch.einsum("qhd,khd->hqk", query.double(), keys.double().repeat_interleave(group, 1))
            positions = torch.arange(len(keys))
            hidden = positions > positions[len(keys) - len(query) :, None]
            weights = (scores * query.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values.double().repeat_interleave(group, 1)))
        return torch.cat(outputs).flatten(1)


def make_step(
    lens: list[int], counts: list[int], geometry: tuple[int, int, int, int], dtype: torch.dtype, seed: int
) -> Step:
    """Scattered blocks; what is not written is NaN, and entries of block tables past a sequence's end are absurd."""
    num_heads, num_kv_heads, head_dim, block_size = geometry
    generator = torch.Generator().manual_seed(seed)
    keys = [3 * torch.randn(n, num_kv_heads, head_dim, generator=generator) for n in lens]
    values = [torch.randn(n, num_kv_heads, head_dim, generator=generator) for n in lens]
    keys, values = [k.to(dtype) for k in keys], [v.to(dtype) for v in values]
    query = torch.randn(sum(counts), num_heads, head_dim, generator=generator).to(dtype)
    blocks = [-(-n // block_size) for n in lens]
    ids = torch.randperm(sum(blocks) + 3, generator=generator)[: sum(blocks)].split(blocks)
    tables = torch.full((len(lens), max(blocks) + 1), 2**31 - 1, dtype=torch.int32)
    spec = KVCacheSpec((AttentionSpec(num_kv_heads, head_dim),), block_size, dtype)
    cache = TorchAttention.allocate(spec, sum(blocks) + 3, CPU)[0].fill_(torch.nan)
    for s, (length, count) in enumerate(zip(lens, counts, strict=True)):
        tables[s, : blocks[s]] = ids[s].int()
        slot = (ids[s] * block_size)[torch.arange(length) // block_size] + torch.arange(length) % block_size
        old = slot[: length - count]
        cache[0, old // block_size, :, old % block_size] = keys[s][: length - count]
        cache[1, old // block_size, :, old % block_size] = values[s][: length - count]
    metadata = AttentionMetadata.of_sequences(lens, counts, tables, block_size)
    return Step(query, keys, values, counts, cache, metadata)


def random_step(geometry: tuple[int, int, int, int], dtype: torch.dtype, seed: int) -> Step:
    rng = random.Random(seed)
    lens = [rng.choice([1, 2, 15, 16, 17, 100, 127, 128, 129, 255, 256, 300]) for _ in range(rng.randint(1, 24))]
    counts = [rng.choice([1, 1, 1, min(n, 2), min(n, 20), n]) for n in lens]
    return make_step(lens, counts, geometry, dtype, seed)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_random_steps(geometry: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    for seed in range(3):
        step = random_step(geometry, dtype, seed)
        actual = step.run()
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), step.expected(), atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("window", [1, 7, 16, 100])
def test_windows(window: int) -> None:
    geometry = Geometry(4, 2, 24, 8)
    sequences = make_sequences([1, 9, window, 130], geometry, torch.float32, seed=window)
    outputs = Run(TorchAttention(), geometry, sequences, window=window).in_random_steps(random.Random(window))
    for known, output in zip(sequences, outputs, strict=True):
        torch.testing.assert_close(output.double(), known.expected(24**-0.5, window), atol=1e-5, rtol=0)


def test_exactly_the_slots_of_the_step_are_written() -> None:
    step = make_step([40, 7, 129], [3, 1, 129], (4, 2, 16, 16), torch.float32, seed=5)
    before = step.cache.clone()
    step.run()
    written = torch.zeros(step.cache.shape[1] * 16, dtype=torch.bool)
    written[step.metadata.slot_mapping] = True
    written = written.view(1, -1, 1, 16, 1).expand_as(before)
    assert torch.equal(step.cache[~written].isnan(), before[~written].isnan())
    assert torch.equal(step.cache[~written].nan_to_num(), before[~written].nan_to_num())
    slots = step.metadata.slot_mapping[-129:]
    assert torch.equal(step.cache[0, slots // 16, :, slots % 16], step.keys[2])
    assert torch.equal(step.cache[1, slots // 16, :, slots % 16], step.values[2])


def test_how_many_rows_are_computed_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = random_step((4, 2, 64, 16), torch.float32, seed=7).run()
    monkeypatch.setattr("engine_core.attention.torch_reference._MAX_SCORES", 4 * 300 * 7)
    torch.testing.assert_close(random_step((4, 2, 64, 16), torch.float32, seed=7).run(), expected)


def test_bytes_per_block_are_what_is_allocated() -> None:
    spec = KVCacheSpec((AttentionSpec(2, 24),) * 3, 16, torch.bfloat16, group_layers([None] * 3))
    caches = TorchAttention.allocate(spec, 10, CPU)
    assert len(caches) == 3
    assert sum(cache.nbytes for cache in caches) == 10 * TorchAttention.bytes_per_block(spec)


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("sunk", [False, True])
def test_capped_scores_and_sinks(softcap: float | None, sunk: bool) -> None:
    geometry = Geometry(4, 2, 24, 16)
    sinks = torch.tensor([-3.0, 0.0, 5.0, 60.0]) if sunk else None
    sequences = make_sequences([1, 40], geometry, torch.float32, seed=3)
    run = Run(TorchAttention(), geometry, sequences, softcap=softcap, sinks=sinks)
    for output, known in zip(run.in_random_steps(random.Random(3)), sequences, strict=True):
        expected = known.expected(24**-0.5, None, softcap, sinks)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=0)
