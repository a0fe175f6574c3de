"""Interleaved rounds (A, B, A, B, …) and their statistics: a slow minute of the machine slows all contestants alike,
and ratios are taken within a round.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of the rounds, and their range."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        """The figure of one or more values."""
        known = list(values)
        return cls(statistics.median(known), min(known), max(known))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.lowest:.3g} … {self.highest:.3g})"


def interleave(rounds: int, measure: Mapping[str, Callable[[int], _T]]) -> dict[str, list[_T]]:
    """Call each of ``measure`` once per round with the round's number; returns lists of results, keyed by name.

    Every other round goes backwards: a contestant is affected by the cache contents and clock rate that the one before
    it leaves.
    """
    results: dict[str, list[_T]] = {name: [] for name in measure}
    for number in range(rounds):
        names = list(measure)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            results[name].append(measure[name](number))
        print(f"\r  round {number + 1} of {rounds}", end="\n" if number + 1 == rounds else "", file=sys.stderr)
    return results


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """The ratio of values that were taken in the same rounds."""
    return Figure.of(a / b for a, b in zip(ours, theirs, strict=True))
