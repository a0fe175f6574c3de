"""Receives, checks and cancels the requests of all client streams, and passes them on by way of admission.

Cheap checks come first: id, deadline, limits on live and waiting requests.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence

from ringline.inference.v1 import inference_pb2

from services.common.telemetry.tracing import carrier_of
from services.processor.admission.admission import Admission
from services.processor.admission.validation import MAX_REQUEST_ID_BYTES, check_request_id, refuse
from services.processor.client_stream import ClientStream
from services.processor.gateways import Gateways
from services.processor.in_flight import InFlightRequests
from services.processor.media.chat_pictures import PictureSource
from services.processor.metrics import ProcessorMetrics
from services.processor.pooling.plan import PoolingMessage
from services.processor.principal import Principal
from services.processor.request import Request
from services.processor.tracing import RequestTraces
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId, ring_id
from services.ring.outbox import Outboxes

_NO_FRAME = "none is set: expected generate, cancel, embed, score or classify"


class Intake:
    """The open client streams. Takes requests from their frame to ``InFlightRequests``."""

    def __init__(
        self,
        me: PeerId,
        admission: Admission,
        in_flight: InFlightRequests,
        metrics: ProcessorMetrics,
        *,
        max_live_requests: int,
        outboxes: Outboxes,
        traces: RequestTraces,
        gateways: Gateways,
    ) -> None:
        """``max_live_requests``: per session. ``outboxes`` bound the clients' unread output."""
        self._me = me
        self._admission = admission
        self._in_flight = in_flight
        self._metrics = metrics
        self._max_live_requests = max_live_requests
        self._outboxes = outboxes
        self._traces = traces
        self._gateways = gateways
        self._counter = itertools.count(1)
        self.streams: set[ClientStream] = set()
        self.draining = False

    def drain(self) -> None:
        """Refuse new requests, and wake every stream's writer to inform its client."""
        self.draining = True
        for stream in self.streams:
            stream.wake.set()

    @property
    def num_open(self) -> int:
        """Requests whose ends their clients have not taken."""
        return sum(stream.num_live for stream in self.streams)

    def open(self, principal: Principal, metadata: Iterable[tuple[str, str | bytes]] = ()) -> ClientStream:
        stream = ClientStream(principal.tenant, principal.is_valid, self._outboxes, carrier_of(metadata))
        stream.gateway = self._gateways.enter(metadata)
        self.streams.add(stream)
        return stream

    def close(self, stream: ClientStream) -> None:
        """The stream is over: cancel its requests and free its state."""
        self.streams.discard(stream)
        self._gateways.leave(stream.gateway)
        self.cancel(stream)
        stream.clear()

    def cancel(self, stream: ClientStream) -> None:
        """Cancel the stream's requests; its client still receives their ends."""
        for request in stream.requests():
            self._in_flight.end(request, FinishReason.CANCELLED)

    def begin(
        self,
        stream: ClientStream,
        message: inference_pb2.GenerateRequest | PoolingMessage,
        ordinal: int,
        arrived_at: float,
        call_timeout: float | None,
        sources: Sequence[PictureSource] = (),
    ) -> None:
        """Take one request; raises ``Refused``.

        ``call_timeout``: seconds until the deadline of the RPC. ``sources``: what was taken out of the message.
        """
        self._check_open(stream)
        check_request_id(message.request_id)
        options = message if isinstance(message, inference_pb2.GenerateRequest) else message.options
        if options.HasField("timeout_ms") and options.timeout_ms == 0:
            field = "timeout_ms" if options is message else "options.timeout_ms"
            raise refuse(field, "0 is out of range: expected at least 1")
        now = time.monotonic()
        deadlines = [arrived_at + options.timeout_ms / 1000] if options.HasField("timeout_ms") else []
        if call_timeout is not None:
            deadlines.append(now + call_timeout)
        request = Request(
            request_id=ring_id(self._me.incarnation, next(self._counter)),
            client_request_id=message.request_id,
            ordinal=ordinal,
            tenant=stream.tenant,
            stream=stream,
            gateway=stream.gateway,
            arrived_at=arrived_at,
            deadline=min(deadlines, default=None),
        )
        request.trace = self._traces.begin(stream.carrier, options.traceparent, request.request_id, arrived_at)
        try:
            self._admission.enter(request, message, sources, now, on_resolved=self._in_flight.start)
        except Refused as refused:
            request.trace.refused_at_once(refused.status)
            raise
        stream.add(request)
        if request.deadline is not None:
            request.deadline_timer = asyncio.get_running_loop().call_later(
                request.deadline - now, self._in_flight.end, request, FinishReason.DEADLINE
            )

    def session_frame(
        self,
        stream: ClientStream,
        frame: inference_pb2.SessionRequest,
        ordinal: int,
        arrived_at: float,
        sources: Sequence[PictureSource],
    ) -> None:
        """Handle a session's frame; errors are answered on the stream."""
        match frame.WhichOneof("frame"):
            case "generate" | "embed" | "score" | "classify" as kind:
                self._session_request(stream, getattr(frame, kind), ordinal, arrived_at, sources)
            case "cancel":
                request = stream.find(frame.cancel.request_id)
                if request is not None:
                    self._in_flight.end(request, FinishReason.CANCELLED)
            case _:
                self.refuse(stream, "", ordinal, refuse("frame", _NO_FRAME).status)

    def refuse(self, stream: ClientStream, client_request_id: str, ordinal: int, status: Status) -> None:
        """Answer a session's frame that does not become a request; the id is empty if it cannot be read."""
        self._metrics.request_refused(status.code.name, stream.tenant)
        stream.refuse(client_request_id, ordinal, status)

    def _session_request(
        self,
        stream: ClientStream,
        message: inference_pb2.GenerateRequest | PoolingMessage,
        ordinal: int,
        arrived_at: float,
        sources: Sequence[PictureSource],
    ) -> None:
        try:
            if not message.request_id:
                raise refuse("request_id", "empty: expected a name that is unique in the session")
            if stream.find(message.request_id) is not None:
                problem = f"{message.request_id[:80]!r} is the name of a live request of this session: expected another"
                raise refuse("request_id", problem)
            if stream.num_live >= self._max_live_requests:
                problem = (
                    f"limit of {self._max_live_requests} live requests per session reached; retry when one has ended"
                )
                raise Refused(Code.RESOURCE_EXHAUSTED, problem, retry_after_ms=100, reason=Reason.QUOTA)
            self.begin(stream, message, ordinal, arrived_at, None, sources)
        except Refused as refused:
            self.refuse(stream, usable_id(message), ordinal, refused.status)

    def check_not_draining(self) -> None:
        """Raise ``Refused`` for a call that comes while the processor drains.

        gRPC itself can send a call elsewhere if this is its only answer (docs/how-to/channels.md).
        """
        if self.draining:
            problem = "this processor is about to end: send the request again, to another or once this one is back"
            raise Refused(Code.UNAVAILABLE, problem, retry_after_ms=0, reason=Reason.DRAINING)

    def _check_open(self, stream: ClientStream) -> None:
        """Raise ``Refused`` if the stream takes no new requests; the client may retry on another one or elsewhere."""
        self.check_not_draining()
        if stream.is_valid is not None and not stream.is_valid():
            stream.drain()  # the client opens another stream, with a valid token if it has one
            problem = "the token of this stream is no longer valid: open another stream"
        elif stream.ending:
            problem = "this stream is ending: open another stream"
        else:
            return
        raise Refused(Code.UNAVAILABLE, problem, retry_after_ms=0, reason=Reason.DRAINING)


def usable_id(message: inference_pb2.GenerateRequest | PoolingMessage) -> str:
    """The client's id of a refused request; empty if it exceeds the limit on ids."""
    return message.request_id if len(message.request_id.encode()) <= MAX_REQUEST_ID_BYTES else ""
