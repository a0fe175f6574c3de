"""OpenTelemetry traces: spans are made from recorded times, and sent in batches by OTLP.

OpenTelemetry is imported only if tracing is configured. Processes pass a request's trace context on as a
``traceparent`` (W3C Trace Context); a request without one is not traced. All other modules use monotonic seconds; this
one converts them to wall-clock times.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any

from ringline.security import is_local

from services.common.config.errors import ExitCode, FatalError
from services.common.config.settings import ServiceSettings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

MAX_TRACEPARENT = 128
"""Characters; version 00 of the format has 55."""
_CLOSE_TIMEOUT = 5.0
"""Seconds to send the last spans when the process ends."""
_CLOCK_TRIES, _CLOCK_INTERVAL = 5, 60.0
"""The clocks' offset is the best of five readings, renewed after this many seconds."""

Attributes = Mapping[str, str | int | float | bool]


def start_tracing(settings: ServiceSettings) -> Tracing | None:
    """The process's tracing; None if it is not configured. Raises ``FatalError`` if OpenTelemetry is not installed."""
    if settings.telemetry.otlp_traces_endpoint is None:
        return None
    try:
        return Tracing(settings)
    except ModuleNotFoundError as error:
        raise FatalError(
            f"--otlp-traces-endpoint needs {error.name}: pip install 'ringline-server[tracing]'", ExitCode.USAGE
        ) from None


class Tracing:
    """Makes the spans of one process, on the event loop; a thread sends them."""

    def __init__(self, settings: ServiceSettings) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        telemetry = settings.telemetry
        identity = {"service.name": f"ringline-{settings.service}", "service.instance.id": settings.name}
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(telemetry.traces_sample_ratio)),
            resource=Resource.create(identity),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(
            endpoint=telemetry.otlp_traces_endpoint,
            channel_options=collector_options(telemetry.otlp_traces_endpoint or ""),  # type: ignore[arg-type]
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ringline")
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER
        self._clock = WallClock()

    def close(self) -> None:
        """Send the last spans; waits a few seconds at most."""
        thread = Thread(target=self._provider.shutdown, name="close-tracing", daemon=True)
        thread.start()
        thread.join(_CLOSE_TIMEOUT)

    def begin(self, name: str, carrier: Mapping[str, str], start: float) -> Span | None:
        """Start a span under the parent that ``carrier`` names; None if the trace is not sampled."""
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span(name, context, kind=self._server, start_time=self.nanoseconds(start))
        return span if span.is_recording() else None

    def traceparent(self, span: Span) -> str:
        """The ``traceparent`` of ``span``, for other processes."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier["traceparent"]

    def span(self, name: str, traceparent: str, start: float, end: float, attributes: Attributes) -> None:
        """Record a finished span under the parent ``traceparent``. Times are monotonic seconds."""
        context = self._propagator.extract({"traceparent": traceparent})
        if not context:  # malformed; a separate trace would be useless
            return
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=self.nanoseconds(start))
        span.end(self.nanoseconds(max(start, end)))

    def nanoseconds(self, seconds: float) -> int:
        """A monotonic time in seconds as nanoseconds since 1970."""
        return self._clock.nanoseconds(seconds)


class WallClock:
    """Converts monotonic times to wall-clock times. Their offset changes only when the clock is set."""

    def __init__(self) -> None:
        self._offset = 0
        self._read_at: float | None = None

    def nanoseconds(self, seconds: float) -> int:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at > _CLOCK_INTERVAL:
            self._read_at, self._offset = now, _offset()
        return round(seconds * 1e9) + self._offset


def collector_options(endpoint: str) -> tuple[tuple[str, int]]:
    """A collector on this machine is dialled directly, one elsewhere through the environment's proxy, if any."""
    return (("grpc.enable_http_proxy", int(not is_local(endpoint))),)


def _offset() -> int:
    """Nanoseconds from the monotonic clock to the wall clock: the quickest of several readings."""
    readings: list[tuple[int, int]] = []
    for _ in range(_CLOCK_TRIES):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def carrier_of(metadata: Any) -> dict[str, str]:
    """The trace context in a call's metadata."""
    return {key: value for key, value in metadata if key in ("traceparent", "tracestate") and isinstance(value, str)}
