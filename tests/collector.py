"""An OTLP receiver for tests: a gRPC server that keeps every span it is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

TIMEOUT = 60.0


@dataclass(frozen=True)
class Received:
    """A span, and who sent it."""

    service: str
    span: trace_pb2.Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def attributes(self) -> dict[str, Any]:
        return _values(self.span.attributes)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [_values(event.attributes) for event in self.span.events if event.name == name]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """What has arrived."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Received] = []
        self._changed = threading.Condition()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._changed:
            for resource in request.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self.spans += [Received(service, span) for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: str, complete: Callable[[list[Received]], object]) -> list[Received]:
        """The spans of a trace, by their beginnings, once it is complete."""
        end = time.monotonic() + TIMEOUT
        with self._changed:
            while True:
                found = [one for one in self.spans if one.span.trace_id.hex() == trace_id]
                if complete(found):
                    return sorted(found, key=lambda one: one.span.start_time_unix_nano)
                assert self._changed.wait(end - time.monotonic()), [one.name for one in found]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector
    server.stop(None)
