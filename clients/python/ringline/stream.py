"""One request's answer, as the blocking client streams it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from ringline.course import Course
from ringline.delivered import Admitted
from ringline.errors import Cancelled, RingError, Truncated, Unavailable, from_lost_call
from ringline.inference.v1 import inference_pb2 as pb
from ringline.results import Delta, Event, Generation, Resumed
from ringline.servers import Server, Servers


class Call(Protocol):
    """What gRPC returns for a Generate call."""

    def __next__(self) -> pb.GenerateResponse: ...

    def cancel(self) -> object: ...


class Stream(Iterator[Delta]):
    """One request's answer, delta by delta. Leaving the loop and ``close()`` cancel the request.

    (A call that nobody holds any more is cancelled by gRPC.)
    """

    def __init__(
        self,
        servers: Servers[Any],
        call: Callable[[Any, pb.GenerateRequest, float | None], Call],
        course: Course,
    ) -> None:
        self._servers = servers
        self._open = call
        self._course = course
        self._call: Call | None = None
        self._server: Server[Any] | None = None
        """That has the call, or had the last one."""
        self._failure: RingError | None = None
        self._closed = threading.Event()

    @property
    def request(self) -> Admitted | None:
        """The request as the server took it; None until it did."""
        return self._course.reader.admitted

    def events(self) -> Iterator[Event]:
        """All that happens, not deltas alone."""
        while (event := self._next_event()) is not None:
            yield event

    def result(self) -> Generation:
        """Wait for the end; the whole answer."""
        while self._next_event() is not None:
            pass
        reader = self._course.reader
        if not reader.done:
            raise reader.ended(Cancelled("the stream was closed"))
        return reader.generation()

    def close(self) -> None:
        """Cancel the request, if it has not ended; from any thread."""
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

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
        """The next event, over as many attempts as it takes; None after the last. Raises what it failed with."""
        while self._failure is None and not self._closed.is_set():
            try:
                if self._course.reader.done:
                    self._finish()
                    break
                if (event := self._read()) is not None:
                    return event
            except RingError as error:
                self._drop_call()
                if not self._closed.is_set():
                    self._wait_to_retry(error)
        if self._failure is not None:
            raise self._failure
        return None

    def _begin(self) -> Call:
        if self._servers.closed:
            raise self._course.reader.ended(Cancelled("the client is closed"))
        request = self._course.next_request()
        self._server = self._servers.choose()
        with self._servers.using(self._server) as used:
            call = self._call = used.keep(self._open(used.connection, request, self._course.deadline.backstop()))
        if self._closed.is_set():  # meanwhile, when there was no call yet to cancel
            call.cancel()
        return call

    def _read(self) -> Event | None:
        """What the server says next, if it is an event to tell."""
        call = self._call or self._begin()
        try:
            response = next(call)
        except StopIteration:
            self._lost(Truncated("the stream ended before the request did"))
            return None
        except grpc.RpcError as failure:
            self._lost(from_lost_call(failure))
            return None
        event = self._course.read(response)
        if self._server is not None and isinstance(event, Admitted | Resumed):
            self._servers.worked(self._server)
        return event

    def _lost(self, cause: RingError) -> None:
        if (error := self._course.reader.lost(cause)) is not None:
            raise error from None

    def _finish(self) -> None:
        """After the end: see that nothing follows."""
        if self._call is not None:
            with contextlib.suppress(StopIteration, grpc.RpcError):
                self._course.read(next(self._call))
            self._call = None
        self._failure = self._course.reader.failure

    def _wait_to_retry(self, error: RingError) -> None:
        if self._server is not None and isinstance(error, Unavailable):
            self._servers.failed(self._server)
        try:
            self._closed.wait(self._course.delay(error, another=self._servers.another))
        except RingError as final:
            self._failure = final

    def _drop_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
