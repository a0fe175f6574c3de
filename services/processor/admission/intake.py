"""Where clients' requests begin, are refused and end, whichever stream they came on.

What costs nothing is checked here, before anything is done for a request: its name, its time, how many its stream has.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable

from ringline.inference.v1 import inference_pb2

from services.processor.admission.tokenization_queue import TokenizationQueue
from services.processor.admission.validation import MAX_REQUEST_ID_BYTES, check_request_id, refuse
from services.processor.client import ClientRequest, ClientStream
from services.processor.in_flight import InFlightRequests
from services.processor.metrics import ProcessorMetrics
from services.processor.principal import Principal
from services.processor.tracing import RequestTraces
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId, ring_id
from services.ring.outbox import Outboxes
from services.telemetry.tracing import carrier_of


class Intake:
    """The streams that are open, and the requests that they have under way."""

    def __init__(
        self,
        me: PeerId,
        ring: InFlightRequests,
        desk: TokenizationQueue,
        metrics: ProcessorMetrics,
        *,
        max_live_requests: int,
        outboxes: Outboxes | None = None,
        traces: RequestTraces | None = None,
    ) -> None:
        """``max_live_requests``: of one session. ``outboxes`` count what waits for clients.

        Without ``traces`` nothing is traced.
        """
        self._me = me
        self._ring = ring
        self._desk = desk
        self._metrics = metrics
        self._max_live_requests = max_live_requests
        self._outboxes = outboxes or Outboxes()
        self._traces = traces
        self._counter = itertools.count(1)
        self._clients: set[ClientStream] = set()
        self.draining = False

    def drain(self) -> None:
        """Take nothing new; every stream's writer is woken, to say so."""
        self.draining = True
        for client in self._clients:
            client.wake.set()

    @property
    def num_open(self) -> int:
        """Requests whose ends have not been taken by their clients."""
        return sum(client.num_live for client in self._clients)

    def open(self, caller: Principal, metadata: Iterable[tuple[str, str | bytes]] = ()) -> ClientStream:
        """A client's stream began, with a call of this metadata."""
        client = ClientStream(caller.tenant, caller.still_known, self._outboxes)
        if self._traces is not None:
            client.carrier = carrier_of(metadata)
        self._clients.add(client)
        return client

    def close(self, client: ClientStream) -> None:
        """The client's stream is over: what it had under way ends, and nothing is kept for it."""
        self._clients.discard(client)
        for call in client.requests():
            self._end(call, FinishReason.CANCELLED)
        client.clear()

    def begin(
        self,
        client: ClientStream,
        request: inference_pb2.GenerateRequest,
        ordinal: int,
        arrived: float,
        call_timeout: float | None = None,
    ) -> None:
        """Begin the request of a stream's frame ``ordinal``; raises ``Refused``.

        ``arrived``: when the frame was read, on the monotonic clock. ``call_timeout``: seconds from now.
        """
        try:
            self._begin(client, request, ordinal, arrived, call_timeout)
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, client.tenant)
            raise

    def session_frame(
        self, client: ClientStream, frame: inference_pb2.SessionRequest, ordinal: int, arrived: float
    ) -> None:
        """Do what a session's frame, read at ``arrived``, says; what is wrong with it is answered there."""
        match frame.WhichOneof("frame"):
            case "generate":
                self._session_request(client, frame.generate, ordinal, arrived)
            case "cancel":
                call = client.find(frame.cancel.request_id)
                if call is not None:
                    self._end(call, FinishReason.CANCELLED)
            case _:
                self.refuse_frame(client, ordinal, refuse("frame", "none is set: expected generate or cancel").status)

    def refuse_frame(self, client: ClientStream, ordinal: int, status: Status) -> None:
        """A session's frame is not carried out, and nobody knows which request it is about."""
        self._refuse(client, "", ordinal, status)

    def _session_request(
        self, client: ClientStream, request: inference_pb2.GenerateRequest, ordinal: int, arrived: float
    ) -> None:
        try:
            if not request.request_id:
                raise refuse("request_id", "empty: a session needs a name for each of its requests")
            if client.find(request.request_id) is not None:
                raise refuse("request_id", f"{request.request_id[:80]!r} is live on this session already")
            if client.num_live >= self._max_live_requests:
                most = self._max_live_requests
                message = f"this session has {most} live requests"
                raise Refused(Code.RESOURCE_EXHAUSTED, message, retry_after_ms=100, reason=Reason.QUOTA)
            self._begin(client, request, ordinal, arrived, None)
        except Refused as refused:
            self._refuse(client, usable_id(request), ordinal, refused.status)

    def _begin(
        self,
        client: ClientStream,
        request: inference_pb2.GenerateRequest,
        ordinal: int,
        arrived: float,
        call_timeout: float | None,
    ) -> None:
        if self.draining:
            message = "this processor is draining: try another"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0, reason=Reason.DRAINING)
        if client.still_known is not None and not client.still_known():
            # Retryable, and said of the stream: on another one the client shows a token that holds, if it has one.
            client.drain()
            message = "the token of this stream holds no longer: begin another stream"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0, reason=Reason.DRAINING)
        if client.over:
            message = "this stream was asked to end: begin another stream"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0, reason=Reason.DRAINING)
        check_request_id(request.request_id)
        if request.HasField("timeout_ms") and request.timeout_ms == 0:
            raise refuse("timeout_ms", "0 is out of range: expected at least 1")
        now = time.monotonic()
        deadlines = [arrived + request.timeout_ms / 1000] if request.HasField("timeout_ms") else []
        if call_timeout is not None:
            deadlines.append(now + call_timeout)
        call = ClientRequest(
            ring_id=ring_id(self._me.incarnation, next(self._counter)),
            client_id=request.request_id,
            ordinal=ordinal,
            client=client,
            arrived=arrived,
            deadline=min(deadlines, default=None),
        )
        if self._traces is not None:
            call.trace = self._traces.begin(client.carrier, request, call.ring_id, arrived)
        try:
            self._desk.admit(call, request)
        except Refused as refused:
            if call.trace is not None:
                call.trace.refused(refused.status)
            raise
        client.add(call)
        if call.deadline is not None:
            loop = asyncio.get_running_loop()
            call.timer = loop.call_later(call.deadline - now, self._end, call, FinishReason.DEADLINE)

    def _refuse(self, client: ClientStream, client_id: str, ordinal: int, status: Status) -> None:
        """A frame of a session does not become a request."""
        self._metrics.request_refused(status.code.name, client.tenant)
        client.refuse(client_id, ordinal, status)

    def _end(self, call: ClientRequest, finish_reason: FinishReason) -> None:
        """End a request here and now, wherever it is."""
        self._desk.drop(call)
        self._ring.end(call, finish_reason)


def usable_id(request: inference_pb2.GenerateRequest) -> str:
    """The client's name for a refused request; empty where it is too long to be one."""
    return request.request_id if len(request.request_id.encode()) <= MAX_REQUEST_ID_BYTES else ""
