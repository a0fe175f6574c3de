"""The blocking client's stream of one answer."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from ringline.errors import Cancelled, RingError, Truncated, from_lost_call
from ringline.inference.v1 import inference_pb2 as pb
from ringline.outputs import Admitted, Usage
from ringline.results import Delta, Event, Generation, Resumed
from ringline.retrying_request import RetryingRequest
from ringline.server_pool import Server, ServerPool


class GenerateCall(Protocol):
    """gRPC's call object of a Generate RPC."""

    def __next__(self) -> pb.GenerateResponse: ...

    def cancel(self) -> object: ...


class Stream(Iterator[Delta]):
    """One request's answer, delta by delta. ``close()`` and leaving the ``with`` block cancel the request.

    So does dropping the last reference, as by leaving a loop early: gRPC cancels a call that is garbage collected.
    """

    def __init__(
        self,
        pool: ServerPool[Any],
        call: Callable[[Any, pb.GenerateRequest, float | None], GenerateCall],
        retrying: RetryingRequest,
    ) -> None:
        self._pool = pool
        self._open = call
        self._retrying = retrying
        self._call: GenerateCall | None = None
        self._server: Server[Any] | None = None
        """The server of the current or last attempt."""
        self._events: deque[Event] = deque()
        """Events read but not yet taken: one response may bring two."""
        self._failure: RingError | None = None
        self._closed = threading.Event()

    @property
    def request(self) -> Admitted | None:
        """The request as the server admitted it; None until then."""
        return self._retrying.reader.admitted

    @property
    def usage(self) -> Usage | None:
        """The request's token counts; None until it has ended."""
        return self._retrying.reader.usage

    def events(self) -> Iterator[Event]:
        """All events, not only deltas."""
        while (event := self._next_event()) is not None:
            yield event

    def result(self) -> Generation:
        """Wait for the end and return the whole answer. Raises the request's error; Cancelled if closed before."""
        while self._next_event() is not None:
            pass
        reader = self._retrying.reader
        if not reader.done:
            raise reader.ended(Cancelled("the stream was closed"))
        return reader.generation()

    def close(self) -> None:
        """Cancel the request if it has not ended. May be called from any thread."""
        self._closed.set()
        if (call := self._call) is not None:  # the thread that reads may drop it meanwhile
            call.cancel()

    def __next__(self) -> Delta:
        while (event := self._next_event()) is not None:
            if isinstance(event, Delta):
                return event
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _next_event(self) -> Event | None:
        """The next event, over any number of attempts; None after the last. Raises the request's error."""
        while self._failure is None and not self._closed.is_set():
            if self._events:
                return self._events.popleft()
            try:
                if self._retrying.reader.done:
                    self._finish()
                    break
                self._events.extend(self._read())
            except RingError as error:
                self._drop_call()
                if not self._closed.is_set():
                    self._wait_to_retry(error)
        if self._failure is not None:
            raise self._failure
        return None

    def _begin(self) -> GenerateCall:
        self._server = self._pool.choose(self._retrying.avoid)
        try:
            with self._pool.using(self._server) as used:
                request, backstop = self._retrying.next_request(), self._retrying.deadline.backstop()
                call = self._call = used.keep(self._open(used.connection, request, backstop))
        except Cancelled as closed:
            raise self._retrying.reader.ended(closed) from None
        if self._closed.is_set():  # closed before there was a call to cancel
            call.cancel()
        return call

    def _read(self) -> list[Event]:
        """Read one response; returns its events for the caller."""
        call = self._call or self._begin()
        try:
            response = next(call)
        except StopIteration:
            self._lost(Truncated("the stream ended before the request did"))
            return []
        except grpc.RpcError as failure:
            self._lost(from_lost_call(failure))
            return []
        events = self._retrying.read(response)
        if self._server is not None and any(isinstance(event, Admitted | Resumed) for event in events):
            self._pool.succeeded(self._server)
        return events

    def _lost(self, cause: RingError) -> None:
        if (error := self._retrying.reader.lost(cause)) is not None:
            raise error from None

    def _finish(self) -> None:
        """Check that no response follows the end."""
        if self._call is not None:
            with contextlib.suppress(StopIteration, grpc.RpcError):
                self._retrying.read(next(self._call))
            self._call = None
        self._failure = self._retrying.reader.failure

    def _wait_to_retry(self, error: RingError) -> None:
        if self._server is not None:
            error = self._retrying.failed_at(self._server, self._pool, error)
        any_available = self._pool.any_available_but(self._retrying.avoid)
        try:
            self._closed.wait(self._retrying.delay(error, any_available=any_available))
        except RingError as final:
            self._failure = final

    def _drop_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
