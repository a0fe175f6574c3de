"""Histograms, and the metrics of every service; named as in vLLM where it has them, so that its dashboards work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

REQUEST_SECONDS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)


class Histogram:
    """Counts of values per bucket. One thread observes; others may read, and may miss the latest observation."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        """``buckets``: upper bounds, ascending; a last bucket without an upper bound is added."""
        if list(buckets) != sorted(set(buckets)) or not buckets:
            raise ValueError(f"{name}: buckets must ascend")
        self._name, self._documentation = name, documentation
        self.bounds = tuple(buckets)
        """Upper bounds of all buckets but the last."""
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._counts)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def family(self, labels: dict[str, str]) -> HistogramMetricFamily:
        total = 0
        cumulative: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), tuple(self._counts), strict=True):
            total += count
            cumulative.append((bound, total))
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(labels))
        family.add_metric(list(labels.values()), cumulative, self._sum)
        return family


class ServiceMetrics(Collector):
    """The metrics that all services have, and those of the process, in a separate registry."""

    def __init__(self) -> None:
        self.model_name = ""
        """The served model; set when it is known."""
        self.serving = False
        """Whether the service takes requests, as health reports it; set on each change."""
        self.open_calls: Callable[[], int] = lambda: 0
        """Number of RPCs that gRPC has not released; set when there is a server. Called from another thread."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def _service(self) -> Iterator[Metric]:
        yield self._gauge("ringline_serving", "Whether requests are taken.", self.serving)
        yield self._gauge("ringline_open_calls", "RPCs under way, health and reflection among them.", self.open_calls())

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self.model_name], value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self.model_name], value)
        return family

    def _counters(self, name: str, documentation: str, label: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name", label])
        for key, value in sorted(values.items()):
            family.add_metric([self.model_name, key], value)
        return family

    def _gauges(self, name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name", label])
        for key, value in sorted(values.items()):
            family.add_metric([self.model_name, key], value)
        return family

    def _histograms(self, *histograms: Histogram) -> Iterator[Metric]:
        for histogram in histograms:
            yield histogram.family({"model_name": self.model_name})
