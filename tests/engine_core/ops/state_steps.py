"""Sequences whose states are kept in slots, computed in one step or in random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from engine_core.kv_cache_interface import NO_STATE
from engine_core.states.base import StateMetadata

Compute = Callable[[torch.Tensor, StateMetadata], torch.Tensor]
"""Outputs for rows [R] int64 of all sequences' rows, for a step of them."""
NOWHERE = -1
_STARTED = 0
"""The slot that sequences with a state start from."""


@dataclass(frozen=True, slots=True)
class States:
    """Sequences of ``lengths`` rows; the first starts from zeros, the others from one slot. Each has two working slots,
    and one for a snapshot after each ``period`` rows.
    """

    lengths: Sequence[int]
    period: int

    @property
    def num_slots(self) -> int:
        """With one that nobody uses."""
        return 2 + 2 * len(self.lengths) + sum(length // self.period for length in self.lengths)

    @property
    def snapshots(self) -> slice:
        """Their slots."""
        return slice(1 + 2 * len(self.lengths), self.num_slots - 1)

    def at_once(self, compute: Compute) -> tuple[torch.Tensor, list[int]]:
        """Outputs of all rows, and the slot of each sequence's last state."""
        return self._run(compute, iter([list(enumerate(self.lengths))]), None)

    def in_random_steps(self, compute: Compute, choose: random.Random) -> tuple[torch.Tensor, list[int]]:
        """The same. Some steps are padded; some states are left in their source, some pass through it."""
        return self._run(compute, self._random_steps(choose), choose)

    def _random_steps(self, choose: random.Random) -> Iterator[list[tuple[int, int]]]:
        left = list(self.lengths)
        while any(left):
            places = [place for place, count in enumerate(left) if count]
            chosen = choose.sample(places, choose.randint(1, len(places)))
            step = [(place, choose.choice([1, choose.randint(1, left[place])])) for place in chosen]
            for place, count in step:
                left[place] -= count
            yield step

    def _run(
        self, compute: Compute, steps: Iterator[list[tuple[int, int]]], choose: random.Random | None
    ) -> tuple[torch.Tensor, list[int]]:
        firsts = [sum(self.lengths[:place]) for place in range(len(self.lengths))]
        done, slots = [0] * len(self.lengths), [NO_STATE, *[_STARTED] * (len(self.lengths) - 1)]
        outputs: list[torch.Tensor | None] = [None] * sum(self.lengths)
        for step in steps:
            rows, sources, targets, saves = list[int](), list[int](), list[int](), list[list[tuple[int, int]]]()
            for place, count in step:
                rows += range(firsts[place] + done[place], firsts[place] + done[place] + count)
                sources.append(slots[place])
                further = list(self._snapshots(place, done[place], count))
                targets.append(1 + 2 * place)
                if choose is not None and sources[-1] > _STARTED and choose.random() < 0.7:
                    targets[-1] = (1 + 2 * place) + (sources[-1] == 1 + 2 * place)
                    further = sorted([*further, (1, sources[-1])], key=lambda save: save[0])
                saves.append(further)
                slots[place] = targets[-1]
                done[place] += count
            counts, wanted = [count for _, count in step], list(rows)
            if choose is not None and choose.random() < 0.5:
                rows, counts, saves = [*rows, 0, 0], [*counts, 1, 1], [*saves, [], []]
                sources, targets = [*sources, NO_STATE, NO_STATE], [*targets, NOWHERE, NOWHERE]
            metadata = StateMetadata.of_sequences(counts, sources, targets, saves)
            made = compute(torch.tensor(rows), metadata)
            for row, output in zip(wanted, made, strict=False):
                outputs[row] = output
        return torch.stack([each for each in outputs if each is not None]), slots

    def _snapshots(self, place: int, done: int, count: int) -> Iterator[tuple[int, int]]:
        first = self.snapshots.start + sum(length // self.period for length in self.lengths[:place])
        for number in range(done // self.period, (done + count) // self.period):
            yield (number + 1) * self.period - done, first + number
