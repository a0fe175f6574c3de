"""The gateway's Prometheus metrics: requests by endpoint and status, times, tokens, connections, callers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from services.common.telemetry.metrics import REQUEST_SECONDS, Histogram, ServiceMetrics
from services.gateway.http.call import TokenCount

_FIRST_BYTE_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)


class GatewayMetrics(ServiceMetrics):
    """All metrics of the process. The event loop writes them; the metrics endpoint's thread reads them.

    The label ``endpoint`` is a path of the endpoint list, which bounds the number of values.
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        """By endpoint and status."""
        self._malformed: Counter[str] = Counter()
        """By status."""
        self._prompt_tokens: Counter[str] = Counter()
        self._output_tokens: Counter[str] = Counter()
        self._first_byte = Histogram(
            "ringline_http_first_byte_seconds",
            "From a request's head to the first byte of its answer's body.",
            _FIRST_BYTE_SECONDS,
        )
        self._seconds = Histogram(
            "ringline_http_request_seconds", "From a request's head to the end of its answer.", REQUEST_SECONDS
        )
        self.connections: Callable[[], int] = lambda: 0
        """Open ones. Called from another thread, like the next two."""
        self.requests_under_way: Callable[[], int] = lambda: 0
        self.callers: Callable[[], int] = lambda: 0
        super().__init__()

    def request_ended(self, endpoint: str, status: int, first_byte_seconds: float | None, seconds: float) -> None:
        """A request was answered, or its client went away."""
        self._requests[endpoint, str(int(status))] += 1
        if first_byte_seconds is not None:
            self._first_byte.observe(first_byte_seconds)
        self._seconds.observe(seconds)

    def request_refused(self, status: HTTPStatus) -> None:
        """A malformed request was refused."""
        self._malformed[str(int(status))] += 1

    def tokens_used(self, endpoint: str, tokens: TokenCount) -> None:
        """Count the tokens of an ended request."""
        self._prompt_tokens[endpoint] += tokens.prompt
        self._output_tokens[endpoint] += tokens.output

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("ringline_serving", "Whether requests are taken.", self.serving)
        requests = CounterMetricFamily(
            "ringline_http_requests", "Requests, by endpoint and status.", labels=["model_name", "endpoint", "status"]
        )
        for (endpoint, status), count in sorted(self._requests.copy().items()):
            requests.add_metric([self.model_name, endpoint, status], count)
        yield requests
        yield self._counters(
            "ringline_http_malformed", "What was no HTTP request, by status.", "status", self._malformed.copy()
        )
        yield self._gauge("ringline_http_open_requests", "Requests under way.", self.requests_under_way())
        yield self._gauge("ringline_http_connections", "Open connections.", self.connections())
        yield self._gauge("ringline_http_callers", "Tokens and tenants with a session.", self.callers())
        yield self._counters("ringline_http_prompt_tokens", "Prompt tokens.", "endpoint", self._prompt_tokens.copy())
        yield self._counters("ringline_http_output_tokens", "Output tokens.", "endpoint", self._output_tokens.copy())
        yield from self._histograms(self._first_byte, self._seconds)
