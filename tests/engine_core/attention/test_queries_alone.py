"""Attention over a cache that another layer has written: queries come without keys, and nothing is written."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels.library import load_kernels
from tests.engine_core.attention.sequences import Geometry, Run, make_sequences


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
@pytest.mark.parametrize("backend", [NativeAttention(load_kernels()), TorchAttention()], ids=["native", "torch"])
def test_queries_alone_see_what_was_written(backend: AttentionBackend, dtype: torch.dtype, window: int | None) -> None:
    geometry = Geometry(6, 2, 32, 16)
    reading: Any = ReadingAgain(backend)
    run = Run(reading, geometry, make_sequences([1, 40, 150, 700], geometry, dtype, seed=2), window=window)
    run.in_random_steps(random.Random(1))
    assert reading.again > 4
