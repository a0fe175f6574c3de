"""Attention to all of an input, or to as many tokens ahead as behind, over one cache that layers use in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.kv_cache_interface import AttentionSpec, KVCacheGroup

BLOCK_SIZE, HEADS, CPU = 16, 3, torch.device("cpu")
LENGTHS = (1, 2, 15, 16, 17, 47, 48, 49, 64, 65, 130, 300)


def attend(
    backend: AttentionBackend, layers: list[torch.Tensor], lengths: list[int], window: int | None
) -> list[list[torch.Tensor]]:
    """For each layer, the outputs [n, Hq · D] of each input; ``layers`` [3, T, Hq, D]: queries, keys and values."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2)).int()
    tables = torch.nn.utils.rnn.pad_sequence(list(order.split(counts)), batch_first=True)
    metadata = AttentionMetadata.of_sequences(lengths, lengths, tables, BLOCK_SIZE)
    ends = [min(length, place + (window or length)) for length in lengths for place in range(length)]
    metadata = replace(metadata, visible_until=torch.tensor(ends, dtype=torch.int32))
    heads, width = layers[0].shape[2:]
    groups, specs = (KVCacheGroup(tuple(range(len(layers)))),), (AttentionSpec(heads, width),) * len(layers)
    spec = KVCacheSpec(specs, BLOCK_SIZE, layers[0].dtype, groups, takes_turns=True)
    caches = backend.allocate(spec, sum(counts), CPU)
    assert len({cache.data_ptr() for cache in caches}) == 1
    options = AttentionOptions(width**-0.5, window, both_ways=True)
    return [
        list(backend.forward(*layer, cache, metadata, options).split(lengths))
        for layer, cache in zip(layers, caches, strict=True)
    ]


def expected(layer: torch.Tensor, window: int | None) -> torch.Tensor:
    """[n, Hq · D] in float64."""
    query, key, value = layer.double().transpose(1, 2)
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    if window is not None:
        places = torch.arange(layer.shape[1])
        scores = scores.masked_fill((places - places[:, None]).abs() >= window, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("window", [None, 1, 7, 65])
@pytest.mark.parametrize("width", [32, 64])
def test_against_float64_and_bitwise(backend: AttentionBackend, window: int | None, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = list(LENGTHS)
    layers = [torch.randn(3, sum(lengths), HEADS, width, generator=generator) for _ in range(2)]
    together = attend(backend, layers, lengths, window)
    for layer, outputs in zip(layers, together, strict=True):
        for part, output in zip(layer.split(lengths, dim=1), outputs, strict=True):
            torch.testing.assert_close(output.double(), expected(part, window), atol=1e-5, rtol=1e-5)
            if backend.batch_invariant:
                [[alone]] = attend(backend, [part], [part.shape[1]], window)
                assert torch.equal(alone, output)
