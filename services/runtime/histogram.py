"""A Prometheus histogram that is cheap to fill: one observation stands for any number of equal ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.metrics_core import HistogramMetricFamily


class Histogram:
    """Counts of values by bucket. One thread fills it, others may read; they are at most one observation behind."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        """``buckets`` are upper bounds, ascending; one without bound is added."""
        if list(buckets) != sorted(set(buckets)) or not buckets:
            raise ValueError(f"{name}: buckets must ascend")
        self._name, self._documentation = name, documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds of all buckets but the last."""
        return self._bounds

    @property
    def counts(self) -> tuple[int, ...]:
        """How many values are in each bucket."""
        return tuple(self._counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` as often as said."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, labels: dict[str, str]) -> HistogramMetricFamily:
        """What it holds now, for a collector."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), tuple(self._counts), strict=True):
            total += count
            cumulative.append((bound, total))
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(labels))
        family.add_metric(list(labels.values()), cumulative, self._sum)
        return family
