"""The processor's Prometheus metrics: latencies, tokens, finish reasons, counts per tenant, state of peers."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from services.common.telemetry.metrics import GAP_SECONDS, REQUEST_SECONDS, Histogram, ServiceMetrics
from services.ring.errors import Code
from services.ring.events import FinishReason

MAX_TENANTS = 50
"""The most tenants with their own counters."""
IDLE = 3600.0
"""Seconds without a request after which a tenant's counters may go to another tenant."""
MAX_ADAPTERS = 100
"""The most pairs of a tenant and an adapter with their own counters."""
OTHERS, NOBODY = "(others)", "(none)"
"""Labels of all tenants without their own counters, and of requests without a tenant."""
_SERIES = {
    "requests": ("ringline_tenant_requests", "Admitted requests that have ended, by tenant."),
    "refused": ("ringline_tenant_refused", "Requests refused before they had choices, by tenant."),
    "prompt_tokens": ("ringline_tenant_prompt_tokens", "Prompt tokens of ended requests, by tenant."),
    "generation_tokens": ("ringline_tenant_generation_tokens", "Output tokens of ended requests, by tenant."),
}
_ADAPTER_SERIES = {
    "requests": ("ringline_adapter_requests", "Admitted requests with an adapter that have ended, by tenant."),
    "prompt_tokens": ("ringline_adapter_prompt_tokens", "Prompt tokens of ended requests with an adapter."),
    "generation_tokens": ("ringline_adapter_generation_tokens", "Output tokens of ended requests with an adapter."),
}
_FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_FINISHED_REASONS = {"cancelled": "abort"}
"""Finish reasons that vLLM names differently."""


@dataclass(slots=True)
class _Counts:
    last_at: float = 0.0
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class BoundedCounts:
    """Counters by labels, of which a bounded number have their own. The event loop writes; another thread reads."""

    def __init__(
        self,
        series: Mapping[str, tuple[str, str]],
        labels: Sequence[str],
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``series``: name and documentation of each counter. ``most``: combinations of labels with their own ones."""
        self._series = series
        self._labels = labels
        self._most = most
        self._clock = clock
        self._named: OrderedDict[tuple[str, ...], _Counts] = OrderedDict()
        """Counters by labels, least recently active first."""
        self._others = _Counts()

    def ended(self, *labels: str, prompt_tokens: int, generation_tokens: int) -> None:
        """An admitted request has ended."""
        counts = self._of(labels)
        counts.requests += 1
        counts.prompt_tokens += prompt_tokens
        counts.generation_tokens += generation_tokens

    def refused(self, *labels: str) -> None:
        """A request was refused before it had choices."""
        self._of(labels).refused += 1

    def _of(self, labels: tuple[str, ...]) -> _Counts:
        now = self._clock()
        counts = self._named.get(labels)
        if counts is None:
            if len(self._named) >= self._most:
                first = next(iter(self._named))
                if now - self._named[first].last_at < IDLE:
                    return self._others
                del self._named[first]
            counts = self._named[labels] = _Counts()
        counts.last_at = now
        self._named.move_to_end(labels)
        return counts

    def families(self, model_name: str) -> Iterator[Metric]:
        named = [(tuple(map(_label, labels)), counts) for labels, counts in self._named.copy().items()]
        others = (OTHERS,) * len(self._labels)
        for count, (name, documentation) in self._series.items():
            family = CounterMetricFamily(name, documentation, labels=["model_name", *self._labels])
            for labels, counts in (*named, (others, self._others)):
                family.add_metric([model_name, *labels], getattr(counts, count))
            yield family


def tenant_counts(most: int = MAX_TENANTS, clock: Callable[[], float] = time.monotonic) -> BoundedCounts:
    """Counters by tenant."""
    return BoundedCounts(_SERIES, ("tenant",), most, clock)


@dataclass(frozen=True, slots=True)
class ProcessorReading:
    """The state of a processor at one moment."""

    live_requests: int = 0
    waiting_requests: int = 0
    """Received, but not begun by any engine."""
    engines: int = 0
    detokenizers: int = 0
    suspected: int = 0
    """Peers whose heartbeats are missing or whose steps make no progress."""
    generations: int = 0
    """Model generations held; more than one during a rollout."""
    failovers: Mapping[str, int] = field(default_factory=dict)
    """Since the start, keyed by what changed: engine, detokenizer, or neither (replay)."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """Peers lost since the start without having drained, keyed by service."""
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Routing decisions since the start, keyed by reason: prefix, overload or load."""
    loads: Mapping[str, int] = field(default_factory=dict)
    """Last known number of choices at each engine, keyed by engine name."""
    prefixes: int = 0
    """Prompt prefixes remembered."""
    picture_bytes: int = 0
    """Bytes of all requests' pictures."""


class ProcessorMetrics(ServiceMetrics):
    """All metrics of the process. The event loop writes them; the metrics endpoint's thread reads them."""

    def __init__(self, open_calls: Callable[[], int] = lambda: 0) -> None:
        """``open_calls``: RPCs that gRPC still holds; called from another thread."""
        self._now = ProcessorReading()
        self.first_token_times = Histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to a choice's first token.",
            _FIRST_TOKEN_SECONDS,
        )
        self._itl = Histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.", GAP_SECONDS)
        self._latency = Histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", REQUEST_SECONDS
        )
        self._admission = Histogram(
            "ringline_admission_seconds", "From a request's arrival until it is tokenized and sent out.", GAP_SECONDS
        )
        self._prefill = Histogram(
            "vllm:request_prefill_time_seconds",
            "From when an engine begins a request to its first token.",
            REQUEST_SECONDS,
        )
        self._decode = Histogram(
            "vllm:request_decode_time_seconds", "From a request's first token to its last.", REQUEST_SECONDS
        )
        self._prompt = Histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", _TOKENS)
        self._generation = Histogram("vllm:request_generation_tokens", "Output tokens per request.", _TOKENS)
        self._prompt_tokens = 0
        self.generation_tokens = 0
        """Output tokens delivered since the start."""
        # Every kind starts at zero, so that Prometheus sees the first one as an increase.
        self._ends = Counter({_reason(finish_reason.name.lower()): 0 for finish_reason in FinishReason})
        self._refusals = Counter({code.name: 0 for code in Code})
        self._tenants = tenant_counts()
        self._adapters = BoundedCounts(_ADAPTER_SERIES, ("tenant", "adapter"), MAX_ADAPTERS)
        self.pooled_inputs = 0
        """Inputs of answered requests that were pooled, since the start."""
        self._pictures = Histogram(
            "ringline_picture_seconds",
            "From the arrival of a request with pictures until they are prepared.",
            GAP_SECONDS,
        )
        self._num_pictures = 0
        self._picture_bytes = 0
        self.pictures_refused = 0
        """Requests refused for their pictures since the start."""
        self.media_tokens = 0
        """Prompt tokens of ended requests that stand for pictures."""
        super().__init__()
        self.open_calls = open_calls

    def update(self, now: ProcessorReading) -> None:
        """Replace the gauges. Call a few times a second."""
        self._now = now

    def admitted(self, seconds: float) -> None:
        """A request was admitted, ``seconds`` after it arrived."""
        self._admission.observe(seconds)

    def pictures_prepared(self, count: int, nbytes: int, seconds: float) -> None:
        """A request's pictures are prepared, ``seconds`` after it arrived; ``nbytes``: of their pixels."""
        self._num_pictures += count
        self._picture_bytes += nbytes
        self._pictures.observe(seconds)

    def prefilled(self, prompt_tokens: int, seconds: float) -> None:
        """A request's prompt is computed: its first token came ``seconds`` after an engine began it."""
        self._prompt_tokens += prompt_tokens
        self._prefill.observe(seconds)

    def first_token(self, seconds: float, tokens: int = 1) -> None:
        """A choice's first ``tokens`` are delivered, ``seconds`` after the request arrived."""
        self.generation_tokens += tokens
        self.first_token_times.observe(seconds)

    def tokens(self, count: int, seconds: float) -> None:
        """``count`` more tokens of a choice are delivered, ``seconds`` after those before."""
        if count:
            self.generation_tokens += count
            self._itl.observe(seconds / count, count)

    def choice_ended(self, finish_reason: str) -> None:
        """A choice has ended. ``finish_reason``: stop, length, cancelled, deadline or error."""
        self._ends[_reason(finish_reason)] += 1

    def request_refused(self, code: str, tenant: str) -> None:
        """A request was refused before it had choices. ``code``: a gRPC code's name, such as INVALID_ARGUMENT."""
        self._ends["error"] += 1
        self._refusals[code] += 1
        self._tenants.refused(tenant)

    def request_ended(
        self,
        tenant: str,
        prompt_tokens: int,
        completion_tokens: int,
        seconds: float,
        decode_seconds: float | None,
        adapter: str = "",
    ) -> None:
        """An admitted request has ended, ``seconds`` after it arrived.

        ``decode_seconds``: from its first token to its last, if it had any. ``adapter``: name of its adapter, if any.
        """
        self._prompt.observe(prompt_tokens)
        self._generation.observe(completion_tokens)
        self._latency.observe(seconds)
        if decode_seconds is not None:
            self._decode.observe(decode_seconds)
        self._tenants.ended(tenant, prompt_tokens=prompt_tokens, generation_tokens=completion_tokens)
        if adapter:
            self._adapters.ended(tenant, adapter, prompt_tokens=prompt_tokens, generation_tokens=completion_tokens)

    @property
    def ended_requests(self) -> int:
        """Requests, not choices, that have ended since the start, answered or refused."""
        return sum(self._latency.counts) + self._refusals.total()

    def collect(self) -> Iterator[Metric]:
        now = self._now
        yield from self._service()
        yield self._gauge("ringline_live_requests", "Requests this process holds.", now.live_requests)
        yield self._gauge("ringline_waiting_requests", "Requests no engine has begun.", now.waiting_requests)
        yield self._gauge("ringline_engines", "Engines that are attached.", now.engines)
        yield self._gauge("ringline_detokenizers", "Detokenizers that are subscribed to.", now.detokenizers)
        yield self._gauge("ringline_suspected_peers", "Peers that give no sign of life.", now.suspected)
        yield self._gauge("ringline_generations", "Models held side by side.", now.generations)
        yield self._counters("ringline_peers_lost", "Peers lost without having drained.", "service", now.losses)
        yield self._counters("ringline_failovers", "Requests that went on elsewhere.", "changed", now.failovers)
        yield self._counters("ringline_routes", "Requests sent to an engine.", "reason", now.decisions)
        yield self._gauges("ringline_engine_load", "Choices that an engine has.", "engine", now.loads)
        yield self._gauge("ringline_prefixes", "Beginnings of prompts remembered.", now.prefixes)
        yield self._counter(
            "vllm:prompt_tokens", "Prompt tokens of requests that had their first token.", self._prompt_tokens
        )
        yield self._counter("vllm:generation_tokens", "Output tokens delivered.", self.generation_tokens)
        yield self._counter(
            "ringline_pooled_inputs", "Inputs of answered requests that were pooled.", self.pooled_inputs
        )
        yield self._counters(
            "vllm:request_success", "Ends of choices, by finish reason.", "finished_reason", self._ends
        )
        yield self._counters(
            "ringline_requests_refused", "Requests refused before they had choices.", "code", self._refusals
        )
        yield self._counter("ringline_pictures", "Pictures prepared.", self._num_pictures)
        yield self._counter("ringline_picture_bytes", "Bytes of their pixels.", self._picture_bytes)
        yield self._counter("ringline_pictures_refused", "Requests refused for pictures.", self.pictures_refused)
        yield self._counter("ringline_media_tokens", "Prompt tokens that stand for pictures.", self.media_tokens)
        yield self._gauge("ringline_picture_memory_bytes", "Bytes that requests' pictures take.", now.picture_bytes)
        yield from self._histograms(self.first_token_times, self._itl, self._latency, self._pictures)
        yield from self._histograms(self._admission, self._prefill, self._decode, self._prompt, self._generation)
        yield from self._tenants.families(self.model_name)
        yield from self._adapters.families(self.model_name)


def _label(tenant: str) -> str:
    """A tenant's label. A leading parenthesis is doubled, to differ from ``OTHERS`` and ``NOBODY``."""
    if not tenant:
        return NOBODY
    return f"({tenant}" if tenant.startswith("(") else tenant


def _reason(finish_reason: str) -> str:
    return _FINISHED_REASONS.get(finish_reason, finish_reason)
