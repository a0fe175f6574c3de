"""What happens around every RPC of a server: malformed messages are refused, unexpected errors stay inside.

A handler that raises something it did not mean to gives its caller INTERNAL with the number under which the log has
the traceback, never the traceback. A message that is no protobuf of its type, or too large, gives INVALID_ARGUMENT.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from services.ring.events import Refused
from services.runtime.parsing import MalformedMessage
from services.runtime.rate_limited_log import RateLimitedLog

log = structlog.get_logger()

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Guard(grpc.aio.ServerInterceptor):
    """The interceptor of every server of the ring."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[Any]] = set()
        self._malformed = RateLimitedLog(log, "malformed message")

    async def wait_ended(self, seconds: float) -> None:
        """Wait until every RPC's handler has returned, for at most ``seconds``.

        ``grpc.aio.Server.stop`` cancels handlers but does not wait for them; a loop that closes meanwhile makes gRPC
        print a traceback for each.
        """
        if self._calls:
            await asyncio.wait(self._calls, timeout=seconds)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        task = asyncio.current_task()  # of this RPC, until its handler has returned
        if task is not None:
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        return handler if handler is None else _guarded(handler, str(handler_call_details.method), self._malformed)


def _guarded(
    handler: grpc.RpcMethodHandler[Any, Any], method: str, malformed: RateLimitedLog
) -> grpc.RpcMethodHandler[Any, Any]:
    """``handler`` with every behaviour wrapped; the four kinds of RPC have a field and a constructor each."""
    kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    behavior = getattr(handler, "_".join(kind))
    wrap = _around_generator if inspect.isasyncgenfunction(behavior) else _around_coroutine
    make = getattr(grpc, "_".join(kind) + "_rpc_method_handler")
    parse = handler.request_deserializer
    deserializer = _raising(parse) if handler.request_streaming else _returning(parse)
    guarded: grpc.RpcMethodHandler[Any, Any] = make(
        wrap(behavior, method, malformed), deserializer, handler.response_serializer
    )
    return guarded


def _raising(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Of a stream: the error surfaces where the handler reads, and ends the stream through it."""
    if parse is None:
        return None

    def deserialize(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            raise MalformedMessage(str(error)) from None

    return deserialize


def _returning(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Of a single request: gRPC parses before the handler runs and would answer UNKNOWN, so hand the error in."""
    if parse is None:
        return None

    def deserialize(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return MalformedMessage(str(error))

    return deserialize


def _around_coroutine(
    behavior: Callable[..., Awaitable[Any]], method: str, malformed: RateLimitedLog
) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        with _freed():
            async with _watched(request, context, method, malformed):
                return await behavior(request, context)

    return call


def _around_generator(
    behavior: Callable[..., AsyncGenerator[Any, None]], method: str, malformed: RateLimitedLog
) -> Callable[..., Awaitable[None]]:
    """A handler that writes what a generator yields.

    gRPC does not close a generator whose caller has gone: it would be closed some time after its call was freed, and
    whatever it then asked its context would end the process.
    """

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with _freed():
            async with (
                _watched(request, context, method, malformed),
                aclosing(behavior(request, context)) as responses,
            ):
                async for response in responses:
                    await context.write(response)

    return call


@contextmanager
def _freed() -> Iterator[None]:
    """Let nothing keep an RPC that was aborted.

    gRPC's call keeps the error of an abort, the error its traceback, and that every frame of the handler, with the
    call and the request: a cycle, which would stay until Python looks for cycles.
    """
    try:
        yield
    except grpc.aio.AbortError as error:
        error.__traceback__ = error.__context__ = None
        raise _ended() from None


@asynccontextmanager
async def _watched(
    request: Any, context: grpc.aio.ServicerContext[Any, Any], method: str, malformed: RateLimitedLog
) -> AsyncIterator[None]:
    """Log the RPC at debug level, and turn what its handler raises into a status."""
    start = time.monotonic()
    try:
        if isinstance(request, MalformedMessage):
            raise request
        yield
    except asyncio.CancelledError:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code="CANCELLED")
        raise
    except grpc.aio.AbortError:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code=_code(context))
        raise
    except Refused as refused:
        await _abort(context, _CODES[refused.status.code], refused.status.message)
    except MalformedMessage as error:
        malformed.tell(method=method, peer=context.peer(), error=str(error))
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be parsed: {error}")
    except Exception as error:
        # Nobody is there to be written to or aborted. (InternalError: a write came to nothing, for the call is over.)
        if isinstance(error, grpc.aio.InternalError) or (context.done() and isinstance(error, grpc.aio.BaseError)):
            log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, error=str(error))
            raise _ended() from None
        await _abort_internal(context, method)
    else:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code=_code(context))


async def _abort_internal(context: grpc.aio.ServicerContext[Any, Any], method: str) -> NoReturn:
    error_id = secrets.token_hex(4)
    log.error("unexpected error in an RPC", method=method, peer=context.peer(), error_id=error_id, exc_info=True)
    await _abort(context, grpc.StatusCode.INTERNAL, f"internal error; the server's log has it as {error_id}")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, message: str) -> NoReturn:
    """End the RPC with a status, or as it has ended: aborted by its handler, or left by its caller meanwhile."""
    if not context.done():
        with suppress(grpc.aio.InternalError, grpc.aio.UsageError):
            await context.abort(code, message)
    raise _ended()


def _ended() -> asyncio.CancelledError:
    """What a handler whose RPC has ended already may end with: to anything else gRPC has something to say."""
    return asyncio.CancelledError()


def _code(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Name of the status the handler set; without one it is OK."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.OK.name
