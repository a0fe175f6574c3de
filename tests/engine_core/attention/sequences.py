"""Sequences of known queries, keys and values, computed by a backend in steps of any membership and chunk sizes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.kv_cache_interface import AttentionSpec

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Geometry:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    def __str__(self) -> str:
        return f"{self.num_heads}-{self.num_kv_heads}-{self.head_dim}-block{self.block_size}"


@dataclass
class Known:
    """One sequence: all its queries [n, Hq, D], keys and values [n, Hkv, D]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def __len__(self) -> int:
        return len(self.query)

    def expected(
        self, scale: float, window: int | None = None, softcap: float | None = None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Causal attention in float64, as ``AttentionOptions`` says, [n, Hq · D]."""
        group = self.query.shape[1] // self.key.shape[1]
        key, value = (x.double().repeat_interleave(group, 1) for x in (self.key, self.value))
        scores = torch.einsum("qhd,khd->hqk", self.query.double(), key) * scale
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        every = torch.ones(len(self), len(self), dtype=torch.bool)
        hidden = every.triu(1) if window is None else every.triu(1) | every.tril(-window)
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.double().view(-1, 1, 1).expand(-1, len(self), 1)], dim=-1)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(self)], value).flatten(1)


def make_sequences(
    lengths: Sequence[int], geometry: Geometry, dtype: torch.dtype, seed: int, spread: float = 3.0
) -> list[Known]:
    """``spread``: how large keys are, and with them the differences between scores."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(length: int, heads: int) -> torch.Tensor:
        return torch.randn(length, heads, geometry.head_dim, generator=generator)

    return [
        Known(
            numbers(length, geometry.num_heads).to(dtype),
            (spread * numbers(length, geometry.num_kv_heads)).to(dtype),
            numbers(length, geometry.num_kv_heads).to(dtype),
        )
        for length in lengths
    ]


@dataclass
class Run:
    """A cache of scattered blocks, all of its memory NaN until written, and how far each sequence has come."""

    backend: AttentionBackend
    geometry: Geometry
    sequences: list[Known]
    seed: int = 0
    device: torch.device = CPU
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    computed: list[int] = field(init=False)
    outputs: list[list[torch.Tensor]] = field(init=False)
    cache: torch.Tensor = field(init=False)
    num_blocks: int = field(init=False)
    tables: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        g, dtype = self.geometry, self.sequences[0].query.dtype
        blocks = [-(-len(known) // g.block_size) for known in self.sequences]
        self.num_blocks = sum(blocks) + 3
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(self.seed)).int()
        self.tables = list(order[: sum(blocks)].split(blocks))
        spec = KVCacheSpec((AttentionSpec(g.num_kv_heads, g.head_dim),), g.block_size, dtype)
        self.cache = self.backend.allocate(spec, self.num_blocks, self.device)[0]
        self.memory().fill_(torch.nan)
        self.computed = [0] * len(self.sequences)
        self.outputs = [[] for _ in self.sequences]

    def forget(self, blocks: torch.Tensor) -> None:
        """Poison ``blocks``, of which no row sees a token any more: others may have them."""
        of_blocks = self.cache if self.cache.shape[0] == self.num_blocks else self.cache.transpose(0, 1)
        of_blocks[blocks.long().to(self.device)] = torch.nan

    def memory(self) -> torch.Tensor:
        """Everything that was allocated, whatever the layout."""
        return torch.empty(0, dtype=self.cache.dtype, device=self.device).set_(self.cache.untyped_storage())

    def step(self, work: Sequence[tuple[int, int]], scale: float | None = None) -> AttentionMetadata:
        """Compute the next tokens of some sequences, each ``(sequence, count)``."""
        g = self.geometry
        width = max(len(table) for table in self.tables) + 1
        tables = torch.full((len(work), width), 2**31 - 1, dtype=torch.int32)
        rows, lens = [], []
        for row, (s, count) in enumerate(work):
            positions = torch.arange(self.computed[s], self.computed[s] + count)
            used = -(-(self.computed[s] + count) // g.block_size)
            seen = 0 if self.window is None else max(0, self.computed[s] - self.window + 1) // g.block_size
            tables[row, seen:used] = self.tables[s][seen:used]
            self.forget(self.tables[s][:seen])
            known = self.sequences[s]
            rows.append(torch.cat([known.query[positions], known.key[positions], known.value[positions]], dim=1))
            lens.append(self.computed[s] + count)
        counts = [count for _, count in work]
        metadata = AttentionMetadata.of_sequences(lens, counts, tables, g.block_size)
        # One row holds query, key and value, as a fused projection leaves them.
        query, key, value = torch.cat(rows).split([g.num_heads, g.num_kv_heads, g.num_kv_heads], dim=1)
        scale = g.head_dim**-0.5 if scale is None else scale
        query, key, value = (x.to(self.device) for x in (query, key, value))
        self.backend.plan(metadata)
        on_device = metadata.on(self.device)
        options = AttentionOptions(scale, self.window, self.softcap, self.sinks)
        output = self.backend.forward(query, key, value, self.cache, on_device, options)
        for (s, count), part in zip(work, output.cpu().split(counts), strict=True):
            self.computed[s] += count
            self.outputs[s].append(part)
        return metadata

    def unfinished(self) -> list[int]:
        return [s for s, known in enumerate(self.sequences) if self.computed[s] < len(known)]

    def at_once(self) -> list[torch.Tensor]:
        """All outputs, each sequence in a step of its own."""
        for s, known in enumerate(self.sequences):
            self.step([(s, len(known))])
        return self.result()

    def in_random_steps(self, rng: random.Random) -> list[torch.Tensor]:
        """All outputs, from steps of random members and chunk sizes; the last few tokens of each one by one."""
        while unfinished := self.unfinished():
            work = []
            for s in rng.sample(unfinished, rng.randint(1, len(unfinished))):
                rest = len(self.sequences[s]) - self.computed[s]
                work.append((s, 1 if rest <= 4 else rng.choice([1, 2, 3, rng.randint(1, rest - 4), rest - 4])))
            self.step(work)
        return self.result()

    def result(self) -> list[torch.Tensor]:
        return [torch.cat(parts) for parts in self.outputs]
