"""One client's stream (a Session or a Generate call): its live requests and its unwritten responses.

Responses are coalesced per request in an outbox; the stream's writer takes everything new after each write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ringline.inference.v1 import inference_pb2

from services.common.rpc.output_stream import OutputStream
from services.processor.gateways import Gateway
from services.processor.inference_messages import refusal, write_update
from services.processor.pooling.plan import PooledAnswer
from services.processor.pooling.wire import field
from services.processor.request import Request
from services.processor.tracing import RequestTrace
from services.ring.errors import Status
from services.ring.outbox import Outboxes

MAX_FRAME_BYTES = 1 << 20
MAX_REFUSALS = 1000
"""While more refusals than this wait to be written, the client's next frames are not read."""
REFUSAL_DELAY = 0.005
"""Seconds that a refusal waits for other responses, so that the refusals of a flood are written together."""


class ClientStream(OutputStream):
    """The live requests and the outbox of one stream."""

    def __init__(
        self,
        tenant: str,
        is_valid: Callable[[], bool] | None = None,
        outboxes: Outboxes | None = None,
        carrier: Mapping[str, str] | None = None,
    ) -> None:
        """``is_valid``: whether the client's token would be accepted now; None if no token is required.

        ``outboxes`` bound the clients' unread output. ``carrier``: the call's trace context.
        """
        super().__init__(outboxes or Outboxes(), tenant)
        self.tenant = tenant
        self.is_valid = is_valid
        self.draining = False
        """Whether the client was asked to open another stream for new requests."""
        self.ending = False
        """Whether its grace period is over: new requests are refused, and the stream ends with its last one."""
        self.carrier = carrier or {}
        self.gateway: Gateway | None = None
        """The client, if it is a gateway."""
        self._by_client_request_id: dict[str, Request] = {}
        self._by_request_id: dict[str, Request] = {}
        self._refusals: list[inference_pb2.GenerateResponse] = []
        self._closed_traces: list[RequestTrace] = []
        """Traces of requests whose ends were taken, but not written yet."""
        self.room_for_refusals = asyncio.Event()

    @property
    def num_live(self) -> int:
        """Requests whose end has not been taken."""
        return len(self._by_request_id)

    @property
    def num_refusals(self) -> int:
        """Refusals not taken yet."""
        return len(self._refusals)

    def find(self, client_request_id: str) -> Request | None:
        return self._by_client_request_id.get(client_request_id)

    def requests(self) -> list[Request]:
        return list(self._by_request_id.values())

    def add(self, request: Request) -> None:
        self._by_client_request_id[request.client_request_id] = request
        self._by_request_id[request.request_id] = request

    def drain(self) -> None:
        """Ask the client to open another stream; requests that arrive meanwhile are still accepted."""
        self.draining = True
        self.wake.set()

    def end_when_idle(self) -> None:
        """Refuse new requests, and end the stream once none is left."""
        self.ending = True
        self.wake.set()

    def refuse(self, client_request_id: str, in_reply_to: int, status: Status) -> None:
        """Refuse a frame before it becomes a request."""
        self._refusals.append(refusal(client_request_id, in_reply_to, status))
        if len(self._refusals) == 1:
            asyncio.get_running_loop().call_later(REFUSAL_DELAY, self.wake.set)

    def written(self) -> None:
        """The last frame taken has been handed to gRPC."""
        traces, self._closed_traces = self._closed_traces, []
        for trace in traces:
            trace.delivered()

    def clear(self) -> None:
        """The stream is over: drop all unwritten responses."""
        self._closed_traces += [request.trace for request in self._by_request_id.values()]
        self.written()
        self._by_client_request_id.clear()
        self._by_request_id.clear()
        self._refusals.clear()
        super().clear()

    def take_packed(self) -> bytes | None:
        """``take``, serialized. Answers of pooled requests, which may be large, are put into it as they are."""
        answers: list[tuple[str, PooledAnswer]] = []
        frame = self.take(answers)
        if not answers:
            return None if frame is None else frame.SerializeToString()
        parts = [b"" if frame is None else frame.SerializeToString()]
        for name, answer in answers:
            head = inference_pb2.GenerateResponse(request_id=name)
            content = field(head.DESCRIPTOR, answer.event, answer.packed)
            parts += field(inference_pb2.SessionResponse.DESCRIPTOR, "responses", head.SerializeToString(), *content)
        return b"".join(parts)

    def take(self, answers: list[tuple[str, PooledAnswer]] | None = None) -> inference_pb2.SessionResponse | None:
        """Take everything new, up to about 1 MiB; requests whose ends it contains are no longer live.

        ``answers`` gets those of pooled requests, by their names, which are not in the frame then. None if nothing is
        new. Raises ``TimeoutError`` if the client was given up.
        """
        self.check()
        frame = inference_pb2.SessionResponse(responses=self._refusals)
        self._refusals.clear()
        self.room_for_refusals.set()
        for update in self.outbox.take(MAX_FRAME_BYTES):
            request = self._by_request_id[update.request_id]
            if answers is not None and isinstance(update.closing, PooledAnswer):
                answers.append((request.client_request_id, update.closing))  # nothing comes before it
            else:
                write_update(frame, update, request.client_request_id, request.ordinal)
            if update.closing is not None:
                self._taken(request)
        return frame if frame.responses else None

    def take_answer(self) -> PooledAnswer | inference_pb2.Refused | None:
        """Like ``take``, for a call's one request, whose inputs are pooled: all that it is answered with."""
        self.check()
        for update in self.outbox.take(MAX_FRAME_BYTES):
            if isinstance(update.closing, PooledAnswer | inference_pb2.Refused):
                self._taken(self._by_request_id[update.request_id])
                return update.closing
        return None

    def _taken(self, request: Request) -> None:
        """A request's end was taken."""
        self._closed_traces.append(request.trace)
        del self._by_request_id[request.request_id]
        del self._by_client_request_id[request.client_request_id]
