"""Which rank a worker is, and which part of the model it has.

Ranks of a *stage* share each of its layers (tensor parallelism); stages follow each other (pipeline parallelism). Every
cut is along outputs: one rank computes each output, as one chain of additions, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from engine_core.config import ParallelConfig

UNIT = 16
"""Outputs are cut at multiples of this, between the kernels' panels: outputs read in one register stay together."""


SAMPLING_RANK = 0
"""Index within the last stage of the rank that samples: it alone reads or changes logits."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A worker's place among all workers of an engine."""

    tp: int = 0
    """Index within its stage."""
    tp_size: int = 1
    pp: int = 0
    """Index of its stage."""
    pp_size: int = 1
    ranks_on_host: int = 1
    """Workers that share this host's memory and cores, itself included."""
    local: int = 0
    """Index of its GPU among those that its process sees."""
    expert_parallel: bool = False
    """Whether it has whole experts instead of a part of each."""

    @property
    def number(self) -> int:
        """Index among all ranks, stage by stage."""
        return self.pp * self.tp_size + self.tp

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def is_first_stage(self) -> bool:
        """Whether it embeds tokens."""
        return self.pp == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether it has a part of the LM head."""
        return self.pp == self.pp_size - 1

    @property
    def samples(self) -> bool:
        """True for exactly one rank."""
        return self.is_last_stage and self.tp == SAMPLING_RANK

    def __str__(self) -> str:
        return f"tp{self.tp}/{self.tp_size} pp{self.pp}/{self.pp_size}"


def ranks_on_one_host(parallel: ParallelConfig) -> list[Rank]:
    """All ranks of an engine, by number; other engines may have as many on the same host."""
    tp_size, pp_size, size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.world_size
    on_host, first = size * parallel.data_parallel_size, size * parallel.data_parallel_rank
    whole_experts = parallel.enable_expert_parallel
    return [
        Rank(number % tp_size, tp_size, number // tp_size, pp_size, on_host, first + number, whole_experts)
        for number in range(size)
    ]


def cut(count: int, parts: int, unit: int = 1) -> list[range]:
    """``range(count)`` in ``parts`` consecutive ranges, as equal as whole units of ``unit`` allow (the last unit may be
    incomplete).
    """
    units = -(-count // unit)
    ends = [min(count, unit * (units * part // parts)) for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def cut_layers(
    owners: Sequence[int], stages: int, work: Sequence[int] | None = None, head: int = 0
) -> list[range] | None:
    """Layers in ``stages`` consecutive ranges with the most equal work; None if there are too few layers.

    ``owners``: for each layer, itself or the earlier one whose cache it attends over; the two are never separated.
    ``work``: of each layer (default: equal); ``head``: additional work of the last stage. Among equally good divisions,
    longer ranges come first.
    """
    before = [0, *accumulate(work or [1] * len(owners))]
    count, needed, ends = len(owners), len(owners), []
    for layer in reversed(range(count)):
        # A stage may begin with a layer if neither it nor a later layer needs an earlier layer's cache.
        needed = min(needed, owners[layer])
        if needed >= layer:
            ends.append(layer)
    places = [*reversed(ends), count]  # where stages may begin, and where the last one ends
    done = np.array([before[place] for place in places], np.float64)
    cost = np.where(np.arange(len(places)) == 0, 0.0, np.inf)
    begins = []
    for stage in range(stages):
        besides = head if stage == stages - 1 else 0
        longer, chosen = np.full(len(places), np.inf), np.zeros(len(places), np.intp)
        for end in range(1, len(places)):
            found = cost[:end] + (done[end] - done[:end] + besides) ** 2
            chosen[end] = end - 1 - found[::-1].argmin()
            longer[end] = found[chosen[end]]
        cost = longer
        begins.append(chosen)
    if not np.isfinite(cost[-1]):
        return None
    ranges, end = [], len(places) - 1
    for chosen in reversed(begins):
        begin = int(chosen[end])
        ranges.append(range(places[begin], places[end]))
        end = begin
    return ranges[::-1]
