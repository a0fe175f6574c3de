"""The metrics of a service, under vLLM's names where it has them, so that its dashboards show Ringline too.

``vllm:…`` series mean what they mean there and carry its label ``model_name``; ``ringline_…`` are our own. Which
service has which: a request's times and tokens are the processor's (``processor_metrics``), queue and KV cache the
engine's. What changes with every step is read when Prometheus asks; what must be observed when it happens costs about
a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.runtime.histogram import Histogram

REQUEST_SECONDS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServiceMetrics(Collector):
    """What the metrics of every service have in common: a registry of their own, with the process's."""

    def __init__(self) -> None:
        self.model_name = ""
        """The model that is served; set when it is known."""
        self.serving = False
        """Whether requests are taken, as health says; set when that changes."""
        self.open_calls: Callable[[], int] = lambda: 0
        """RPCs that gRPC has not let go of; set when there is a server. Called from another thread."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def _service(self) -> Iterator[Metric]:
        """What every service tells of itself."""
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


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine at one moment; the last ones are totals since its start."""

    running: int
    """Choices being computed."""
    waiting: int
    """Requests, not choices: those of which at least one choice is in the queue."""
    kv_usage: float
    """Share of KV blocks in use, in [0, 1]."""
    kv_blocks: int
    """In all."""
    ledgers: int
    peers: int
    """Processes that are attached."""
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    preemptions: int
    steps: int
    computed_tokens: int
    """Of prompts and outputs."""
    generated_tokens: int


class EngineMetrics(ServiceMetrics):
    """What is computed. Written on the event loop."""

    def __init__(self, read: Callable[[], EngineReading | None]) -> None:
        """``read`` gives the engine's state, None until it has loaded; it is called from another thread."""
        self._read = read
        self._step = Histogram("ringline_step_seconds", "Duration of a step.", GAP_SECONDS)
        self._step_tokens = Histogram("vllm:iteration_tokens_total", "Tokens computed per step.", _STEP_TOKENS)
        self._queue = Histogram(
            "vllm:request_queue_time_seconds",
            "From a request's being queued to its being scheduled first.",
            REQUEST_SECONDS,
        )
        super().__init__()

    def step(self, seconds: float, tokens: int) -> None:
        """A step took ``seconds`` and computed ``tokens`` tokens, of prompts and outputs."""
        self._step.observe(seconds)
        self._step_tokens.observe(tokens)

    def queued(self, seconds: float) -> None:
        """A request was scheduled for the first time, ``seconds`` after it was queued."""
        self._queue.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield from self._service()
        now = self._read()
        if now is not None:
            yield self._gauge("vllm:num_requests_running", "Choices being computed.", now.running)
            yield self._gauge("vllm:num_requests_waiting", "Requests waiting to be computed.", now.waiting)
            yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", now.kv_usage)
            yield self._gauge("ringline_kv_blocks", "KV blocks in all.", now.kv_blocks)
            yield self._gauge("ringline_peers", "Processes that are attached.", now.peers)
            yield self._gauge("ringline_ledgers", "Requests remembered.", now.ledgers)
            yield self._counter("vllm:prefix_cache_queries", "Tokens looked up by prefix.", now.prefix_queries)
            yield self._counter("vllm:prefix_cache_hits", "Of these, found.", now.prefix_hits)
            yield self._counter("vllm:num_preemptions", "Preemptions.", now.preemptions)
            yield self._counter("ringline_steps", "Steps computed.", now.steps)
            yield self._counter("ringline_computed_tokens", "Tokens computed, of prompts too.", now.computed_tokens)
            yield self._counter("ringline_generated_tokens", "Output tokens computed.", now.generated_tokens)
        yield from self._histograms(self._step, self._step_tokens, self._queue)


class DetokenizerMetrics(ServiceMetrics):
    """What is decoded."""

    def __init__(self) -> None:
        self._live_requests, self._decoded_tokens, self._engines, self._subscribers = 0, 0, 0, 0
        self._generations = 0
        super().__init__()

    def update(self, live_requests: int, decoded_tokens: int, engines: int, subscribers: int, generations: int) -> None:
        """How many requests are live, tokens were decoded since the start, peers are linked, tokenizers are held.

        From time to time.
        """
        self._live_requests, self._decoded_tokens = live_requests, decoded_tokens
        self._engines, self._subscribers = engines, subscribers
        self._generations = generations

    def collect(self) -> Iterator[Metric]:
        yield from self._service()
        yield self._gauge("ringline_live_requests", "Requests this process holds.", self._live_requests)
        yield self._counter("ringline_decoded_tokens", "Tokens decoded.", self._decoded_tokens)
        yield self._gauge("ringline_engines", "Engines that are attached and heard.", self._engines)
        yield self._gauge("ringline_subscribers", "Processors that are subscribed.", self._subscribers)
        yield self._gauge("ringline_generations", "Tokenizers held.", self._generations)
