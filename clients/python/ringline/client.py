"""The blocking client: one call per request on one shared channel; safe to use from many threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar, Unpack

import grpc

from ringline.channel import CHANNEL_OPTIONS, metadata_pairs
from ringline.delivered import Admitted
from ringline.errors import Cancelled, RingError, Truncated, from_rpc
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2_grpc import InferenceServiceStub
from ringline.options import Message, Options, TokenizeOptions
from ringline.reader import ResponseReader
from ringline.request import build_detokenize, build_request, build_tokenize
from ringline.results import Delta, Event, Generation, Model, Tokenization, models_from, tokenization_from
from ringline.retry import Backoff, Deadline

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class _Call(Protocol):
    """What gRPC returns for a Generate call."""

    def __next__(self) -> pb.GenerateResponse: ...

    def cancel(self) -> object: ...


class Client:
    """Asks a Ringline server to generate. Use as a context manager, or ``close()`` it.

    Tried again by itself, at most ``retries`` times: what failed with Unavailable before the server admitted it, and,
    if ``retry_overloaded``, what it refused as Overloaded while saying when to come again.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retries: int = 2,
        retry_overloaded: bool = False,
    ) -> None:
        """``address`` is any gRPC target (``host:port``, ``unix:/path``, ``dns:///name:port``).

        Without ``credentials`` the connection is plain text. ``metadata`` goes with every call. ``timeout`` is the
        default of each request, seconds.
        """
        self._channel = (
            grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
        )
        self._stub = InferenceServiceStub(self._channel)
        self._metadata = metadata_pairs(metadata)
        self._timeout = timeout
        self._retries = retries
        self._retry_overloaded = retry_overloaded

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """The whole answer to a text, a conversation or token ids. Raises a RingError unless every choice ended well.

        What had been delivered by then is in the error's ``partial``.
        """
        with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return stream.result()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """The answer as it comes. The request is sent when the first delta is asked for."""
        timeout = options.pop("timeout", self._timeout)
        request = build_request(prompt, messages, token_ids, options)
        deadline = Deadline(timeout)
        return Stream(self._generate, request, deadline, Backoff(self._retries, self._retry_overloaded, deadline))

    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[TokenizeOptions],
    ) -> Tokenization:
        """The ids of a text or a conversation, as ``generate`` would see them.

        Options are ``model``, ``add_special_tokens`` and, for messages, those of the template.
        """
        timeout = options.pop("timeout", self._timeout)
        request = build_tokenize(text, messages, options)
        return tokenization_from(self._call(self._stub.Tokenize, request, timeout))

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool | None = None,
    ) -> str:
        """The text of ids, decoded as a whole."""
        request = build_detokenize(token_ids, model, skip_special_tokens)
        return self._call(self._stub.Detokenize, request, self._timeout).text

    def models(self) -> tuple[Model, ...]:
        """The models that can be asked for."""
        return models_from(self._call(self._stub.ListModels, pb.ListModelsRequest(), self._timeout))

    def close(self) -> None:
        """End every request that is under way and the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _generate(self, request: pb.GenerateRequest, timeout: float | None) -> _Call:
        return self._stub.Generate(request, timeout=timeout, metadata=self._metadata)

    def _call(
        self, method: grpc.UnaryUnaryMultiCallable[_Request, _Response], request: _Request, seconds: float | None
    ) -> _Response:
        deadline = Deadline(seconds)
        backoff = Backoff(self._retries, self._retry_overloaded, deadline)
        while True:
            try:
                return method(request, timeout=deadline.remaining(), metadata=self._metadata)
            except grpc.RpcError as failure:
                time.sleep(backoff.delay(from_rpc(failure)))


class Stream(Iterator[Delta]):
    """One request's answer, delta by delta. Leaving the loop and ``close()`` cancel the request.

    (A call that nobody holds any more is cancelled by gRPC.)
    """

    def __init__(
        self,
        call: Callable[[pb.GenerateRequest, float | None], _Call],
        request: pb.GenerateRequest,
        deadline: Deadline,
        backoff: Backoff,
    ) -> None:
        self._open = call
        self._request = request
        self._deadline = deadline
        self._backoff = backoff
        self._call: _Call | None = None
        self._reader = ResponseReader()
        self._failure: RingError | None = None
        self._closed = threading.Event()

    @property
    def request(self) -> Admitted | None:
        """The request as the server took it; None until it did."""
        return self._reader.admitted

    def events(self) -> Iterator[Event]:
        """All that happens, not deltas alone."""
        while (event := self._next_event()) is not None:
            yield event

    def result(self) -> Generation:
        """Wait for the end; the whole answer."""
        while self._next_event() is not None:
            pass
        if not self._reader.done:
            raise self._reader.ended(Cancelled("the stream was closed"))
        return self._reader.generation()

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
                if self._reader.done:
                    self._finish()
                    break
                return self._attempt()
            except RingError as error:
                self._drop_call()
                if not self._closed.is_set():
                    self._wait_to_retry(error)
        if self._failure is not None:
            raise self._failure
        return None

    def _attempt(self) -> Event:
        if self._call is None:
            milliseconds = self._deadline.remaining_ms()
            if milliseconds is not None:
                self._request.timeout_ms = milliseconds
            self._call = self._open(self._request, self._deadline.backstop())
            if self._closed.is_set():  # meanwhile, when there was no call yet to cancel
                self._call.cancel()
        try:
            response = next(self._call)
        except StopIteration:
            raise self._reader.ended(Truncated("the stream ended before the request did")) from None
        except grpc.RpcError as failure:
            raise self._reader.ended(from_rpc(failure)) from None
        return self._reader.read(response)

    def _finish(self) -> None:
        """After the last terminal: see that nothing follows."""
        if self._call is not None:
            with contextlib.suppress(StopIteration, grpc.RpcError):
                self._reader.read(next(self._call))
            self._call = None
        self._failure = self._reader.failure

    def _wait_to_retry(self, error: RingError) -> None:
        try:
            self._closed.wait(self._backoff.delay(error))
        except RingError as final:
            self._failure = final

    def _drop_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
