"""The metrics of each service, under vLLM's names where it has them, so that its dashboards show Ringline too.

``vllm:…`` series mean what they mean there and carry its label ``model_name``; ``ringline_…`` are our own. Which
service has which: a request's times and tokens are the processor's, queue and KV cache the engine's. What changes with
every step is read when Prometheus asks; what must be observed when it happens costs about a microsecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.runtime.histogram import Histogram

_REQUEST_SECONDS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FINISHED_REASONS = {"cancelled": "abort"}
"""Causes that vLLM calls otherwise."""
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class ServiceMetrics(Collector):
    """What the metrics of every service have in common: a registry of their own, with the process's."""

    def __init__(self) -> None:
        self.model_name = ""
        """The model that is served; set when it is known."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

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
class Routing:
    """How a processor's requests found their engines."""

    decisions: Mapping[str, int]
    """By reason, since the start: prefix, overload or load."""
    loads: Mapping[str, int]
    """Choices that each engine has, by its name, as far as is known."""
    prefixes: int
    """Beginnings of prompts that are remembered."""


class ProcessorMetrics(ServiceMetrics):
    """What clients get. Written on the event loop."""

    def __init__(self) -> None:
        self._live_requests, self._engines, self._detokenizers = 0, 0, 0
        self._routing = Routing({}, {}, 0)
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to a choice's first token.",
            _FIRST_TOKEN_SECONDS,
        )
        self._gap = Histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.", _GAP_SECONDS)
        self._latency = Histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its last terminal.", _REQUEST_SECONDS
        )
        self._prompt = Histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", _TOKENS)
        self._generation = Histogram("vllm:request_generation_tokens", "Output tokens per request.", _TOKENS)
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._ends: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        super().__init__()

    def update(self, live_requests: int, engines: int, detokenizers: int, routing: Routing) -> None:
        """How many requests are live and peers linked, and how requests were routed; from time to time."""
        self._live_requests, self._engines, self._detokenizers = live_requests, engines, detokenizers
        self._routing = routing

    def prefilled(self, prompt_tokens: int) -> None:
        """A request's prompt is computed: its first token is there."""
        self._prompt_tokens += prompt_tokens

    def first_token(self, seconds: float, tokens: int = 1) -> None:
        """A choice's first ``tokens`` are delivered, ``seconds`` after the request arrived."""
        self._generation_tokens += tokens
        self._first_token.observe(seconds)

    def tokens(self, count: int, gap: float) -> None:
        """``count`` more tokens of a choice are delivered, ``gap`` seconds after the ones before."""
        if count:
            self._generation_tokens += count
            self._gap.observe(gap / count, count)

    def choice_ended(self, cause: str) -> None:
        """A choice has its terminal. ``cause``: stop, length, cancelled, deadline or error."""
        self._ends[_FINISHED_REASONS.get(cause, cause)] += 1

    def request_refused(self, code: str) -> None:
        """A request was refused before it had choices. ``code``: the canonical one, such as INVALID_ARGUMENT."""
        self._ends["error"] += 1
        self._refusals[code] += 1

    def request_ended(self, prompt_tokens: int, completion_tokens: int, seconds: float) -> None:
        """An admitted request has its last terminal, ``seconds`` after it arrived."""
        self._prompt.observe(prompt_tokens)
        self._generation.observe(completion_tokens)
        self._latency.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("ringline_live_requests", "Requests this process holds.", self._live_requests)
        yield self._gauge("ringline_engines", "Engines that are attached.", self._engines)
        yield self._gauge("ringline_detokenizers", "Detokenizers that are subscribed to.", self._detokenizers)
        routing = self._routing
        yield self._counters("ringline_routes", "Requests sent to an engine.", "reason", routing.decisions)
        yield self._gauges("ringline_engine_load", "Choices that an engine has.", "engine", routing.loads)
        yield self._gauge("ringline_prefixes", "Beginnings of prompts remembered.", routing.prefixes)
        yield self._counter(
            "vllm:prompt_tokens", "Prompt tokens of requests that had their first token.", self._prompt_tokens
        )
        yield self._counter("vllm:generation_tokens", "Output tokens delivered.", self._generation_tokens)
        yield self._counters("vllm:request_success", "Terminals, by cause.", "finished_reason", self._ends)
        yield self._counters(
            "ringline_requests_refused", "Requests refused before they had choices.", "code", self._refusals
        )
        yield from self._histograms(self._first_token, self._gap, self._latency, self._prompt, self._generation)


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine at one moment; the last ones are totals since its start."""

    running: int
    """Choices being computed."""
    waiting: int
    """Choices waiting: of requests that were never computed, preempted, or waiting for their prompt."""
    kv_usage: float
    """Share of KV blocks in use, in [0, 1]."""
    ledgers: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    preemptions: int
    steps: int
    generated_tokens: int


class EngineMetrics(ServiceMetrics):
    """What is computed. Written on the event loop."""

    def __init__(self, read: Callable[[], EngineReading | None]) -> None:
        """``read`` gives the engine's state, None until it has loaded; it is called from another thread."""
        self._read = read
        self._step = Histogram("ringline_step_seconds", "Duration of a step.", _GAP_SECONDS)
        self._step_tokens = Histogram("vllm:iteration_tokens_total", "Tokens computed per step.", _STEP_TOKENS)
        self._queue = Histogram(
            "vllm:request_queue_time_seconds",
            "From a request's being queued to its being scheduled first.",
            _REQUEST_SECONDS,
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
        now = self._read()
        if now is not None:
            yield self._gauge("vllm:num_requests_running", "Choices being computed.", now.running)
            yield self._gauge("vllm:num_requests_waiting", "Choices waiting.", now.waiting)
            yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", now.kv_usage)
            yield self._gauge("ringline_ledgers", "Requests remembered.", now.ledgers)
            yield self._counter("vllm:prefix_cache_queries", "Tokens looked up by prefix.", now.prefix_queries)
            yield self._counter("vllm:prefix_cache_hits", "Of these, found.", now.prefix_hits)
            yield self._counter("vllm:num_preemptions", "Preemptions.", now.preemptions)
            yield self._counter("ringline_steps", "Steps computed.", now.steps)
            yield self._counter("ringline_generated_tokens", "Output tokens computed.", now.generated_tokens)
        yield from self._histograms(self._step, self._step_tokens, self._queue)


class DetokenizerMetrics(ServiceMetrics):
    """What is decoded."""

    def __init__(self) -> None:
        self._live_requests, self._decoded_tokens = 0, 0
        super().__init__()

    def update(self, live_requests: int, decoded_tokens: int) -> None:
        """How many requests are live, and how many tokens were decoded since the start; from time to time."""
        self._live_requests, self._decoded_tokens = live_requests, decoded_tokens

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("ringline_live_requests", "Requests this process holds.", self._live_requests)
        yield self._counter("ringline_decoded_tokens", "Tokens decoded.", self._decoded_tokens)
