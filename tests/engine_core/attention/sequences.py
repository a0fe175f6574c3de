"""Sequences of known queries, keys and values, or latents, computed by a backend in steps of any kind."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.kv_cache_interface import AttentionSpec, KVCacheGroup, MLAAttentionSpec

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Geometry:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    def __str__(self) -> str:
        return f"{self.num_heads}-{self.num_kv_heads}-{self.head_dim}-block{self.block_size}"


@dataclass(frozen=True)
class Sizes:
    """Of latents."""

    num_heads: int
    latent: int
    rope: int
    block_size: int

    def __str__(self) -> str:
        return f"{self.num_heads}-{self.latent}-{self.rope}-block{self.block_size}"


@dataclass
class Known:
    """One sequence: all its queries [n, Hq, D], keys and values [n, Hkv, D]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def __len__(self) -> int:
        return len(self.query)

    @property
    def scale(self) -> float:
        return float(self.query.shape[2] ** -0.5)

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(*self.key.shape[1:])

    def whole(self, pictures: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of ``pictures`` that the sequence has all of."""
        return [(start, end) for start, end in pictures if end <= len(self)]

    def inputs(self, positions: slice) -> list[torch.Tensor]:
        """One row holds query, key and value, as a fused projection leaves them."""
        return [torch.cat([self.query[positions], self.key[positions], self.value[positions]], dim=1)]

    def attend(self, backend: AttentionBackend, rows: list[torch.Tensor], *step: Any) -> torch.Tensor:
        num_kv_heads = self.key.shape[1]
        query, key, value = rows[0].split([self.query.shape[1], num_kv_heads, num_kv_heads], dim=1)
        return backend.forward(query, key, value, *step)

    def expected(
        self,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        chunked: bool = False,
        pictures: Sequence[tuple[int, int]] = (),
    ) -> torch.Tensor:
        """Causal attention in float64, as ``AttentionOptions`` says, [n, Hq · D]."""
        group = self.query.shape[1] // self.key.shape[1]
        key, value = (x.double().repeat_interleave(group, 1) for x in (self.key, self.value))
        scores = torch.einsum("qhd,khd->hqk", self.query.double(), key).mul_(self.scale)
        scores = scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)
        every = torch.ones(len(self), len(self), dtype=torch.bool)
        hidden = every.triu(1)
        for start, end in self.whole(pictures):
            hidden[start:end, start:end] = False
        if window is not None:
            chunk = torch.arange(len(self)) // window
            hidden |= chunk[:, None] != chunk if chunked else every.tril(-window)
        scores.masked_fill_(hidden, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.double().view(-1, 1, 1).expand(-1, len(self), 1)], dim=-1)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(self)], value).flatten(1)


@dataclass
class KnownLatents:
    """One sequence: queries [n, Hq, R] and [n, Hq, 32 + P], latents [n, R] and their rotated parts [n, 16 + P].

    Neither rows nor heads of what is rotated are dense: it is a slice of whole heads.
    """

    query: torch.Tensor
    query_rope: torch.Tensor
    latent: torch.Tensor
    rope: torch.Tensor
    scale = 0.11

    def __len__(self) -> int:
        return len(self.query)

    @property
    def spec(self) -> MLAAttentionSpec:
        return MLAAttentionSpec(self.latent.shape[1], self.rope.shape[1] - 16)

    def inputs(self, positions: slice) -> list[torch.Tensor]:
        return [each[positions] for each in (self.query, self.query_rope, self.latent, self.rope)]

    def attend(self, backend: AttentionBackend, rows: list[torch.Tensor], *step: Any) -> torch.Tensor:
        query, query_rope, latent, rope = rows
        return backend.forward_latents(query, query_rope[..., 32:], latent, rope[:, 16:], *step)

    def expected(self) -> torch.Tensor:
        """[n, Hq, R] in float64."""
        scores = torch.einsum("qhr,kr->hqk", self.query.double(), self.latent.double())
        scores += torch.einsum("qhp,kp->hqk", self.query_rope[..., 32:].double(), self.rope[:, 16:].double())
        hidden = torch.ones(len(self), len(self), dtype=torch.bool).triu(1)
        weights = (self.scale * scores).masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,kr->qhr", weights, self.latent.double())


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


def make_latents(lengths: Sequence[int], sizes: Sizes, dtype: torch.dtype) -> list[KnownLatents]:
    generator = torch.Generator().manual_seed(1)
    heads, latent, rope = sizes.num_heads, sizes.latent, sizes.rope
    shapes = ((heads, latent), (heads, 32 + rope), (latent,), (16 + rope,))
    return [
        KnownLatents(*(torch.randn(length, *shape, generator=generator).to(dtype) for shape in shapes))
        for length in lengths
    ]


@dataclass
class Run:
    """A cache of scattered blocks, all of its memory NaN until written, and how far each sequence has come."""

    backend: AttentionBackend
    geometry: Geometry | Sizes
    sequences: Sequence[Known] | Sequence[KnownLatents]
    seed: int = 0
    device: torch.device = CPU
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    chunked: bool = False
    pictures: Sequence[tuple[int, int]] = ()
    """Starts and ends of pictures in every sequence that is long enough: their tokens see all of them."""
    computed: list[int] = field(init=False)
    outputs: list[list[torch.Tensor]] = field(init=False)
    cache: torch.Tensor = field(init=False)
    num_blocks: int = field(init=False)
    tables: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        size, first = self.geometry.block_size, self.sequences[0]
        blocks = [-(-len(known) // size) for known in self.sequences]
        self.num_blocks = sum(blocks) + 3
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(self.seed)).int()
        self.tables = list(order[: sum(blocks)].split(blocks))
        spec = KVCacheSpec((first.spec,), size, first.query.dtype, cache_dtype=self.backend.cache_dtype)
        self.cache = self.backend.allocate(spec, self.num_blocks, self.device)[0]
        self.memory().fill_(self.poison)
        self.computed = [0] * len(self.sequences)
        self.outputs = [[] for _ in self.sequences]

    @property
    def poison(self) -> float:
        """NaN; in an 8-bit cache, bytes of scales that are NaN."""
        return torch.nan if self.cache.is_floating_point() else 0xFF

    def leave(self, blocks: torch.Tensor) -> None:
        """Poison blocks that no row reads again: others may have them by now."""
        if self.cache.is_floating_point():
            self.blocks()[blocks.long().to(self.device)] = torch.nan
        else:  # with the scales
            self.memory().view(self.num_blocks, -1)[blocks.long()] = 0xFF

    def blocks(self) -> torch.Tensor:
        """The cache, [blocks, …] whatever the layout."""
        return self.cache if self.cache.shape[0] == self.num_blocks else self.cache.transpose(0, 1)

    def memory(self) -> torch.Tensor:
        """Everything that was allocated, whatever the layout."""
        return torch.empty(0, dtype=self.cache.dtype, device=self.device).set_(self.cache.untyped_storage())

    def step(self, work: Sequence[tuple[int, int]]) -> AttentionMetadata:
        """Compute the next tokens of some sequences, each ``(sequence, count)``."""
        size = self.geometry.block_size
        width = max(len(table) for table in self.tables) + 1
        tables = torch.full((len(work), width), 2**31 - 1, dtype=torch.int32)
        rows, lens, group = [], [], KVCacheGroup((0,), self.window, self.chunked)
        for row, (s, count) in enumerate(work):
            used = -(-(self.computed[s] + count) // size)
            seen = group.first_block(self.computed[s], size)
            tables[row, seen:used] = self.tables[s][seen:used]
            self.leave(self.tables[s][:seen])
            rows.append(self.sequences[s].inputs(slice(self.computed[s], self.computed[s] + count)))
            lens.append(self.computed[s] + count)
        counts = [count for _, count in work]
        metadata = AttentionMetadata.of_sequences(lens, counts, tables, size)
        if self.pictures:
            until = [self.visible_until(s, self.computed[s] + row) for s, count in work for row in range(count)]
            metadata = replace(metadata, visible_until=torch.tensor(until, dtype=torch.int32))
        self.backend.plan(metadata)
        known, inputs = self.sequences[0], [torch.cat(parts).to(self.device) for parts in zip(*rows, strict=True)]
        both_ways = bool(self.pictures)
        options = AttentionOptions(known.scale, self.window, self.softcap, self.sinks, self.chunked, both_ways)
        output = known.attend(self.backend, inputs, self.cache, metadata.on(self.device), options)
        for (s, count), part in zip(work, output.cpu().split(counts), strict=True):
            self.computed[s] += count
            self.outputs[s].append(part)
        return metadata

    def visible_until(self, s: int, position: int) -> int:
        """The end of the picture that a position is in; 0: none."""
        known = self.sequences[s]
        pictures = known.whole(self.pictures) if isinstance(known, Known) else ()
        return next((end for start, end in pictures if start <= position < end), 0)

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
                count = 1 if rest <= 4 else rng.choice([1, 2, 3, rng.randint(1, rest - 4), rest - 4])
                work.append((s, max(count, self.visible_until(s, self.computed[s] + count - 1) - self.computed[s])))
            self.step(work)
        return self.result()

    def result(self) -> list[torch.Tensor]:
        return [torch.cat(parts) for parts in self.outputs]


def assert_right(
    outputs: Iterable[torch.Tensor],
    sequences: Sequence[Known] | Sequence[KnownLatents],
    atol: float,
    rtol: float = 0.0,
    **options: Any,
) -> None:
    """Outputs of all sequences are as ``expected`` with these options, in the type of the queries."""
    for output, known in zip(outputs, sequences, strict=True):
        assert output.dtype == known.query.dtype
        torch.testing.assert_close(output.double(), known.expected(**options), atol=atol, rtol=rtol)


def assert_equal(outputs: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> None:
    """Outputs have the same bits."""
    for output, other in zip(outputs, others, strict=True):
        assert torch.equal(output, other)
