"""Rounds of random gathers whose results are read late: what a rank writes too early, another one finds."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import pairwise

import torch

from engine_core.distributed.collectives import TensorCollectives
from engine_core.kernels.capture import BufferPool, Captured, capturing
from engine_core.kernels.library import load_kernels

DTYPES = (torch.uint8, torch.bfloat16, torch.float32)


def matrix(rows: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Other numbers for another ``seed``; the same on all ranks."""
    return ((torch.arange(rows * width) * 13 + seed * 101) % 251).view(rows, width).to(dtype)


def parts(rng: random.Random, total: int, size: int) -> list[int]:
    """Widths, some of them 0, that add up to ``total``."""
    ends = [0, *sorted(rng.randint(0, total) for _ in range(size - 1)), total]
    return [end - first for first, end in pairwise(ends)]


def own(full: torch.Tensor, widths: list[int], rank: int) -> torch.Tensor:
    """The columns of ``rank``, a view."""
    first = sum(widths[:rank])
    return full[:, first : first + widths[rank]]


@dataclass
class Chain:
    """Gathers of gathers, captured: each reads what the one before has put together, and puts it together again."""

    captured: Captured
    x: torch.Tensor
    widths: list[int]
    output: torch.Tensor

    @classmethod
    def capture(cls, collectives: TensorCollectives, rng: random.Random, width: int) -> Chain:
        captured = Captured(BufferPool(rng.randint(1, 64)), load_kernels().replay)
        rows, size = captured.pool.max_rows, collectives.size
        widths = parts(rng, width, size)
        x = torch.empty(rows, widths[collectives.rank])
        with capturing(captured):
            output = collectives.all_gather(x, widths)
            for _ in range(rng.choice([0, 0, 1, 2, 6])):
                again = parts(rng, width, size)
                output = collectives.all_gather(own(output, again, collectives.rank), again)
        return cls(captured, x, widths, output)

    def replay(self, collectives: TensorCollectives, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The output for some rows, and what it should be."""
        full = matrix(rows, sum(self.widths), torch.float32, seed)
        self.x[:rows] = own(full, self.widths, collectives.rank)
        self.captured.replay(rows=rows, num_threads=1)
        return self.output[:rows], full


def run_rounds(collectives: TensorCollectives, rounds: int, seed: int, most_delay: float) -> None:
    """Every rank does the same, after delays of its own of up to ``most_delay`` seconds.

    Each keeps results, and what is captured, for as many rounds as it likes, and compares results in each round.
    Raises ``AssertionError``.
    """
    shared, alone = random.Random(seed), random.Random(f"{seed} {collectives.rank}")
    rank, size = collectives.rank, collectives.size
    chains = [Chain.capture(collectives, shared, width) for width in (5, 40, 600)]
    kept: list[Chain] = []
    held: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def pause() -> None:
        if alone.random() < 0.2:
            time.sleep(alone.random() * most_delay)

    for number in range(rounds):
        kind, rows, groups = shared.random(), shared.choice([0, 1, 1, 2, 17, 90]), shared.choice([1, 1, 3])
        dtype, width = shared.choice(DTYPES), shared.choice([1, 8, 300, 700])
        until = number + alone.choice([0, 0, 1, 4])
        pause()
        if kind < 0.5:
            widths = parts(shared, width, size)
            full = matrix(rows * groups, width, dtype, number)
            x = own(full, widths, rank).reshape(rows, groups * widths[rank])
            held.append((until, collectives.all_gather(x, widths, groups=groups), full.view(rows, groups * width)))
        elif kind < 0.75:
            counts = parts(shared, 20, size)
            owned = [range(sum(counts[:each]), sum(counts[: each + 1])) for each in range(size)]
            ids = torch.tensor([shared.randrange(20) for _ in range(rows * groups)], dtype=torch.int32)
            full = matrix(rows * groups, width, dtype, number)
            is_own = (ids >= owned[rank].start) & (ids < owned[rank].stop)
            x = torch.where(is_own[:, None], full, torch.full_like(full, 255))
            held.append((until, collectives.gather_rows(x, ids, owned, groups=groups), full))
        elif kind < 0.95:
            chain = shared.choice(chains)
            for again in range(shared.randint(1, 3)):
                output, expected = chain.replay(collectives, shared.randint(0, len(chain.x)), number + again)
                pause()
                assert torch.equal(output, expected), f"round {number}: a replayed gather"
            del output
        elif kind < 0.98:
            collectives.barrier()
        else:
            place, width = shared.randrange(len(chains)), shared.choice([3, 900])
            kept = [each for each in (*kept, chains[place]) if alone.random() < 0.5]
            chains[place] = Chain.capture(collectives, shared, width)
        pause()
        for _, output, expected in held:
            assert torch.equal(output, expected), f"round {number}: a gather"
        held = [each for each in held if each[0] > number]
        output = expected = torch.empty(0)  # or the last result would live on
