"""The detokenizer's metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from services.common.telemetry.metrics import ServiceMetrics


class DetokenizerMetrics(ServiceMetrics):
    """Gauges and counters, updated periodically from the event loop."""

    def __init__(self) -> None:
        self._live_requests, self._decoded_tokens, self._engines, self._subscribers = 0, 0, 0, 0
        self._generations = 0
        super().__init__()

    def update(self, live_requests: int, decoded_tokens: int, engines: int, subscribers: int, generations: int) -> None:
        """``decoded_tokens``: since the start; ``generations``: tokenizers held."""
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
