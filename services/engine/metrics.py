"""The engine's metrics: scheduler, KV cache, links and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from services.common.telemetry.metrics import GAP_SECONDS, REQUEST_SECONDS, Histogram, ServiceMetrics

_MOST_NAMES = 64
"""Names of adapters that requests wait for, in one label."""
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class AdapterReading:
    """Adapters; ``requests`` and the numbers after it are totals since the start."""

    known: int
    """Names."""
    loaded: int
    """In memory, or being loaded."""
    active: int
    """Of these, those of requests under way, and those being loaded."""
    nbytes: int
    """Of those in ``loaded``."""
    waiting_requests: int
    requests: int
    hits: int
    """Requests whose adapter was loaded when they came."""
    loads: int
    failed_loads: int
    evictions: int
    max_active: int
    running_names: Sequence[str]
    waiting_names: Sequence[str]


@dataclass(frozen=True, slots=True)
class EngineReading:
    """A snapshot of the engine; ``prefix_queries`` and the fields after it are totals since its start."""

    running: int
    """Choices being computed."""
    waiting: int
    """Requests (not choices) with at least one choice in the queue."""
    kv_usage: float
    """Fraction of KV blocks, or of slots for states, in use, whichever is larger; in [0, 1]."""
    kv_blocks: int
    """Total number of blocks."""
    states: int
    """Total number of slots for states."""
    states_used: int
    ledgers: int
    peers: int
    """Attached processors and detokenizers."""
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    preemptions: int
    steps: int
    computed_tokens: int
    """Prompt and output tokens."""
    generated_tokens: int
    pictures: int = 0
    """Held, by their pixels."""
    picture_bytes: int = 0
    """Of these pixels, and of pictures that are arriving."""
    received_pictures: int = 0
    """Since the start, like the fields below."""
    encoded_pictures: int = 0
    encoded_tokens: int = 0
    """Of pictures."""
    picture_uses: int = 0
    """Pictures whose embeddings a sequence began to read."""
    picture_hits: int = 0
    """Of these, found: not encoded for that sequence."""
    drafts: int = 0
    """Times that a step tried guessed tokens for a choice."""
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()
    """Drafts whose first token came true, whose second did, and so on; empty if none are guessed."""
    adapters: AdapterReading | None = None
    """None: the engine serves none."""


class EngineMetrics(ServiceMetrics):
    """The event loop updates the histograms; all other values are read at each scrape."""

    def __init__(self, read: Callable[[], EngineReading | None]) -> None:
        """``read`` returns the engine's state, or None until it has loaded. It is called from another thread."""
        self._read = read
        self._step = Histogram("ringline_step_seconds", "Duration of a step.", GAP_SECONDS)
        self._step_tokens = Histogram("vllm:iteration_tokens_total", "Tokens computed per step.", _STEP_TOKENS)
        self._queue = Histogram(
            "vllm:request_queue_time_seconds",
            "From a request's being queued to its being scheduled first.",
            REQUEST_SECONDS,
        )
        self._grammar = Histogram(
            "ringline_grammar_compile_seconds", "Making and compiling the grammar of a request.", GAP_SECONDS
        )
        self._adapter_load = Histogram(
            "ringline_adapter_load_seconds", "Loading an adapter, beside the steps.", GAP_SECONDS
        )
        self.constrained_requests = 0
        """Requests with a constraint since the start."""
        self._failed_choices = 0
        self._choices_without_numbers = 0
        super().__init__()

    def step(self, seconds: float, tokens: int) -> None:
        """A step took ``seconds`` and computed ``tokens`` prompt and output tokens."""
        self._step.observe(seconds)
        self._step_tokens.observe(tokens)

    def queued(self, seconds: float) -> None:
        """A request was scheduled for the first time, ``seconds`` after it was queued."""
        self._queue.observe(seconds)

    def grammar(self, seconds: float) -> None:
        """A grammar took ``seconds`` in its thread; almost none if it was compiled before."""
        self._grammar.observe(seconds)

    def adapter_loaded(self, seconds: float) -> None:
        """An adapter was loaded, in a thread."""
        self._adapter_load.observe(seconds)

    def failed(self, *, by_model: bool) -> None:
        """A choice ended because nothing could be sampled; ``by_model``: because of its logits."""
        self._failed_choices += 1
        self._choices_without_numbers += by_model

    def collect(self) -> Iterator[Metric]:
        yield from self._service()
        now = self._read()
        if now is not None:
            yield self._gauge("vllm:num_requests_running", "Choices being computed.", now.running)
            yield self._gauge("vllm:num_requests_waiting", "Requests waiting to be computed.", now.waiting)
            yield self._gauge(
                "vllm:kv_cache_usage_perc", "Share of KV blocks or states in use; 1 is all.", now.kv_usage
            )
            yield self._gauge("ringline_kv_blocks", "KV blocks in all.", now.kv_blocks)
            yield self._gauge("ringline_states", "Slots for states in all.", now.states)
            yield self._gauge("ringline_states_used", "Slots for states that sequences hold.", now.states_used)
            yield self._gauge("ringline_peers", "Processes that are attached.", now.peers)
            yield self._gauge("ringline_ledgers", "Requests remembered.", now.ledgers)
            yield self._counter("vllm:prefix_cache_queries", "Tokens looked up by prefix.", now.prefix_queries)
            yield self._counter("vllm:prefix_cache_hits", "Of these, found.", now.prefix_hits)
            yield self._counter("vllm:num_preemptions", "Preemptions.", now.preemptions)
            yield self._counter("ringline_steps", "Steps computed.", now.steps)
            yield self._counter("ringline_computed_tokens", "Tokens computed, of prompts too.", now.computed_tokens)
            yield self._counter("ringline_generated_tokens", "Output tokens computed.", now.generated_tokens)
            yield from self._of_pictures(now)
            yield from self._of_drafts(now)
            if now.adapters is not None:
                yield from self._of_adapters(now.adapters)
        yield self._counter("ringline_constrained_requests", "Requests with a constraint.", self.constrained_requests)
        yield self._counter("ringline_failed_choices", "Choices ended by an error of their own.", self._failed_choices)
        yield self._counter(
            "ringline_failed_logits", "Choices ended as the logits were not numbers.", self._choices_without_numbers
        )
        yield from self._histograms(self._step, self._step_tokens, self._queue, self._grammar)

    def _of_drafts(self, now: EngineReading) -> Iterator[Metric]:
        yield self._counter("vllm:spec_decode_num_drafts", "Steps of a choice that tried guesses.", now.drafts)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Tokens guessed for them.", now.draft_tokens)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Of these, right.", now.accepted_draft_tokens)
        yield self._counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "The same, by their position in the guess.",
            "position",
            {str(position): count for position, count in enumerate(now.accepted_by_position)},
        )

    def _of_adapters(self, now: AdapterReading) -> Iterator[Metric]:
        yield self._lora_requests_info(now)
        yield self._gauge("ringline_adapters_known", "Names of adapters that requests may give.", now.known)
        yield self._gauge("ringline_adapters_loaded", "Adapters in memory.", now.loaded)
        yield self._gauge("ringline_adapters_active", "Of these, the ones of requests under way.", now.active)
        yield self._gauge("ringline_adapter_memory_bytes", "Bytes of the adapters in memory.", now.nbytes)
        yield self._gauge(
            "ringline_adapter_requests_waiting", "Requests waiting for their adapter.", now.waiting_requests
        )
        yield self._counter("ringline_adapter_queries", "Requests with an adapter.", now.requests)
        yield self._counter("ringline_adapter_hits", "Of these, those whose adapter was in memory.", now.hits)
        yield self._counter("ringline_adapter_loads", "Adapters loaded.", now.loads)
        yield self._counter("ringline_adapter_load_failures", "Adapters that could not be loaded.", now.failed_loads)
        yield self._counter("ringline_adapter_evictions", "Adapters that made room for others.", now.evictions)
        yield from self._histograms(self._adapter_load)

    def _lora_requests_info(self, now: AdapterReading) -> Metric:
        """As vLLM has it, by which Kubernetes' gateways choose an engine; its value is the time."""
        labels = {
            "model_name": self.model_name,
            "max_lora": str(now.max_active),
            "running_lora_adapters": ",".join(now.running_names),
            "waiting_lora_adapters": ",".join(now.waiting_names[:_MOST_NAMES]),
        }
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters of requests.", labels=list(labels))
        family.add_metric(list(labels.values()), time.time())
        return family

    def _of_pictures(self, now: EngineReading) -> Iterator[Metric]:
        yield self._gauge("ringline_pictures_held", "Pictures whose pixels are kept.", now.pictures)
        yield self._gauge("ringline_picture_memory_bytes", "Bytes of pixels, arriving ones too.", now.picture_bytes)
        yield self._counter("ringline_pictures_received", "Pictures received.", now.received_pictures)
        yield self._counter("ringline_pictures_encoded", "Pictures encoded.", now.encoded_pictures)
        yield self._counter("ringline_picture_tokens_encoded", "Their tokens.", now.encoded_tokens)
        yield self._counter("vllm:mm_cache_queries", "Pictures whose embeddings a sequence needed.", now.picture_uses)
        yield self._counter("vllm:mm_cache_hits", "Of these, found.", now.picture_hits)
