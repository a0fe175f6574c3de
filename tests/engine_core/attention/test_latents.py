"""Attention over latents, for every instruction set of this machine: right against float64 arithmetic without absorbed
projections, and for each row the same bits whatever the other rows, the chunks and the threads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels.library import INSTRUCTION_SETS, KernelsUnavailableError, load_kernels
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, MLAAttentionSpec, group_layers

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Sizes:
    num_heads: int
    latent: int
    rope: int
    block_size: int

    def __str__(self) -> str:
        return f"{self.num_heads}-{self.latent}-{self.rope}-block{self.block_size}"


CPU = torch.device("cpu")
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


@pytest.fixture(params=[*INSTRUCTION_SETS, "torch"])
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    if request.param == "torch":
        return TorchAttention()
    try:
        return NativeAttention(load_kernels(request.param))
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@dataclass
class Run:
    """Sequences whose latents go to scattered blocks of a cache that is NaN until written."""

    backend: AttentionBackend
    sizes: Sizes
    lengths: list[int]
    dtype: torch.dtype
    seed: int = 0
    device: torch.device = CPU
    computed: list[int] = field(init=False)
    outputs: list[list[torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        s, generator = self.sizes, torch.Generator().manual_seed(1)

        def numbers(*shape: int) -> list[torch.Tensor]:
            return [torch.randn(length, *shape, generator=generator).to(self.dtype) for length in self.lengths]

        # Neither rows nor heads of the rotated part are dense: it is a slice of whole heads.
        self.queries, self.query_ropes = numbers(s.num_heads, s.latent), numbers(s.num_heads, 32 + s.rope)
        self.latents, self.ropes = numbers(s.latent), numbers(16 + s.rope)
        blocks = [-(-length // s.block_size) for length in self.lengths]
        order = torch.randperm(sum(blocks) + 2, generator=torch.Generator().manual_seed(self.seed)).int()
        self.tables = list(order[: sum(blocks)].split(blocks))
        spec = KVCacheSpec((MLAAttentionSpec(s.latent, s.rope),), s.block_size, self.dtype)
        [self.cache] = self.backend.allocate(spec, len(order), self.device)
        torch.empty(0, dtype=self.dtype, device=self.device).set_(self.cache.untyped_storage()).fill_(torch.nan)
        self.computed = [0] * len(self.lengths)
        self.outputs = [[] for _ in self.lengths]

    def step(self, work: list[tuple[int, int]]) -> None:
        s = self.sizes
        tables = torch.full((len(work), max(map(len, self.tables))), 2**31 - 1, dtype=torch.int32)
        places = []
        for row, (sequence, count) in enumerate(work):
            positions = torch.arange(self.computed[sequence], self.computed[sequence] + count)
            tables[row, : len(self.tables[sequence])] = self.tables[sequence]
            places.append((sequence, positions))
            self.computed[sequence] += count
        counts = [count for _, count in work]
        lengths = [self.computed[sequence] for sequence, _ in work]
        metadata = AttentionMetadata.of_sequences(lengths, counts, tables, s.block_size).on(self.device)
        query, query_rope, latent, rope = (
            torch.cat([each[sequence][positions] for sequence, positions in places]).to(self.device)
            for each in (self.queries, self.query_ropes, self.latents, self.ropes)
        )
        output = self.backend.forward_latents(
            query, query_rope[..., 32:], latent, rope[:, 16:], self.cache, metadata, AttentionOptions(0.11)
        )
        for (sequence, _), part in zip(work, output.split(counts), strict=True):
            self.outputs[sequence].append(part.clone())

    def at_once(self) -> list[torch.Tensor]:
        for sequence, length in enumerate(self.lengths):
            self.step([(sequence, length)])
        return self.result()

    def in_random_steps(self, rng: random.Random) -> list[torch.Tensor]:
        while unfinished := [s for s, length in enumerate(self.lengths) if self.computed[s] < length]:
            work = []
            for sequence in rng.sample(unfinished, rng.randint(1, len(unfinished))):
                rest = self.lengths[sequence] - self.computed[sequence]
                work.append((sequence, min(rest, rng.choice([1, 1, 2, 17, 150, 600]))))
            self.step(work)
        return self.result()

    def result(self) -> list[torch.Tensor]:
        return [torch.cat(parts) for parts in self.outputs]

    def expected(self, sequence: int) -> torch.Tensor:
        """In float64."""
        latent, rope = self.latents[sequence].double(), self.ropes[sequence][:, 16:].double()
        scores = torch.einsum("qhr,kr->hqk", self.queries[sequence].double(), latent)
        scores += torch.einsum("qhp,kp->hqk", self.query_ropes[sequence][..., 32:].double(), rope)
        hidden = torch.ones(len(latent), len(latent), dtype=torch.bool).triu(1)
        weights = (0.11 * scores).masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,kr->qhr", weights, latent)


@pytest.mark.parametrize(("sizes", "dtype"), CASES, ids=str)
def test_latents_against_float64_and_bitwise(backend: AttentionBackend, sizes: Sizes, dtype: torch.dtype) -> None:
    lengths = [1, 37, 16, 200] if sizes.latent < 500 else [1, 37, 150]
    torch.set_num_threads(1)
    run = Run(backend, sizes, lengths, dtype)
    alone = run.at_once()
    for sequence, output in enumerate(alone):
        torch.testing.assert_close(
            output.double(), run.expected(sequence), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )
    for threads in (1, 3):
        torch.set_num_threads(threads)
        together = Run(backend, sizes, lengths, dtype, seed=threads).in_random_steps(random.Random(threads))
        for one, other in zip(alone, together, strict=True):
            if isinstance(backend, NativeAttention):
                assert torch.equal(one, other)
            else:
                torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bits_do_not_depend_on_block_sizes_that_fit_a_tile(dtype: torch.dtype) -> None:
    backend, lengths = NativeAttention(load_kernels()), [300, 17]
    results = [Run(backend, replace(SMALL, block_size=size), lengths, dtype).at_once() for size in (16, 2, 8, 48, 128)]
    for result in results:
        for actual, expected in zip(result, results[0], strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_long_sequences_are_split_among_threads(rows: int) -> None:
    backend = NativeAttention(load_kernels())
    torch.set_num_threads(1)
    alone = Run(backend, SMALL, [1300, 40], torch.bfloat16).at_once()
    torch.set_num_threads(3)
    run = Run(backend, SMALL, [1300, 40], torch.bfloat16, seed=2)
    run.step([(0, 1300 - rows), (1, 39)])
    run.step([(0, rows), (1, 1)])
    for one, other in zip(alone, run.result(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("spec", [MLAAttentionSpec(24, 8), AttentionSpec(2, 24)], ids=str)
def test_native_kernels_take_padded_widths_alone(spec: LayerCacheSpec) -> None:
    with pytest.raises(ValueError, match=r"the widths of .*Spec\(.*\) are not padded to multiples of 16"):
        NativeAttention.allocate(KVCacheSpec((spec,), 16, torch.float32), 1, torch.device("cpu"))


def test_a_latent_is_kept_once() -> None:
    spec = KVCacheSpec((MLAAttentionSpec(512, 64),) * 5, 16, torch.bfloat16, group_layers([None] * 5))
    for backend in (NativeAttention(load_kernels()), TorchAttention()):
        assert backend.bytes_per_block(spec) == 5 * 16 * 576 * 2
        assert sum(cache.nbytes for cache in backend.allocate(spec, 3, torch.device("cpu"))) == 3 * 5 * 16 * 576 * 2


def test_absorbed_projections_equal_keys_and_values_made_from_latents(backend: AttentionBackend) -> None:
    """The identity that all of this stands on: Wₖ may be applied to queries, Wᵥ to the result."""
    heads, latent_dim, nope, value_dim = 3, 32, 16, 24
    sizes = Sizes(heads, latent_dim, 16, 16)
    generator = torch.Generator().manual_seed(5)
    to_key, to_value = (
        torch.randn(heads, count, latent_dim, generator=generator).double() for count in (nope, value_dim)
    )
    run = Run(backend, sizes, [30], torch.float32)
    query = torch.randn(30, heads, nope, generator=generator).double()
    run.queries = [torch.einsum("qhn,hnr->qhr", query, to_key).float()]
    [output] = run.at_once()
    latent, rope = run.latents[0].double(), run.ropes[0][:, 16:].double()
    keys, values = (torch.einsum("kr,hnr->khn", latent, each) for each in (to_key, to_value))
    scores = torch.einsum("qhn,khn->hqk", query, keys)
    scores += torch.einsum("qhp,kp->hqk", run.query_ropes[0][..., 32:].double(), rope)
    hidden = torch.ones(30, 30, dtype=torch.bool).triu(1)
    weights = (0.11 * scores).masked_fill(hidden, -torch.inf).softmax(-1)
    expected = torch.einsum("hqk,khn->qhn", weights, values)
    actual = torch.einsum("qhr,hnr->qhn", output.double(), to_value)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
