"""What happens around every RPC of a server: malformed messages are refused, unexpected errors stay inside.

A handler that raises something it did not mean to gives its caller INTERNAL with the number under which the log has
the traceback, never the traceback. A message that is no protobuf of its type, or too large, gives INVALID_ARGUMENT.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from services.ring.errors import Code, Reason, Refused, Status
from services.rpc.calls import Call, Calls, end_soon
from services.rpc.handlers import only_message
from services.rpc.message_limits import MalformedMessage
from services.rpc.protobuf import abort
from services.telemetry.logs import RateLimitedLog

log = structlog.get_logger()


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor of every server of the ring."""

    def __init__(self, calls: Calls, stall_timeout: float, called: Callable[[str, int], None]) -> None:
        """``stall_timeout``: seconds that a client has to take what is under way when the handler is done.

        ``called`` is told the peer of each call, and the bytes of its metadata.
        """
        self._calls = calls
        self._called = called
        self._stall_timeout = stall_timeout
        self._malformed = RateLimitedLog(log, "malformed message")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        call = self._calls.begin()
        handler = await continuation(handler_call_details)
        if handler is None:
            call.end_within(self._stall_timeout)
            return None
        return self._guarded(handler, str(handler_call_details.method), call)

    def _guarded(
        self, handler: grpc.RpcMethodHandler[Any, Any], method: str, call: Call
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """``handler`` with every behaviour wrapped; the four kinds of RPC have a field and a constructor each.

        Single requests are read like streams: gRPC would wait for one, for ever, before it asks a handler.
        """
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        behavior = getattr(handler, "_".join(kind))
        given = _messages if handler.request_streaming else only_message
        called = _written(behavior, self._stall_timeout) if inspect.isasyncgenfunction(behavior) else behavior

        async def answer(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                await self._calls.turn()
                self._called(context.peer(), sum(len(key) + len(value) for key, value in _metadata(context)))
                if (refusal := call.admit(context.peer())) is not None:
                    await _abort(context, refusal)
                async with _watched(context, method, self._malformed):
                    return await called(await given(context), context)
            except asyncio.CancelledError:
                if call.pushed_out is not None:
                    await _abort(context, call.pushed_out)
                raise
            finally:
                call.end_within(self._stall_timeout)

        make = getattr(grpc, f"stream_{kind[1]}_rpc_method_handler")
        deserializer = _raising(handler.request_deserializer)
        return make(answer, deserializer, handler.response_serializer)  # type: ignore[no-any-return]


def _metadata(context: grpc.aio.ServicerContext[Any, Any]) -> Iterable[tuple[str, str | bytes]]:
    return context.invocation_metadata() or ()


async def _messages(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
    return _Messages(context)


class _Messages(AsyncIterator[Any]):
    """The messages of a call. gRPC's own iterator and the generator in it refer to each other, and so keep the call."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def __anext__(self) -> Any:
        if (message := await self._context.read()) is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


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


def _written(
    behavior: Callable[..., AsyncGenerator[Any, None]], stall_timeout: float
) -> Callable[..., Awaitable[None]]:
    """A handler that writes what a generator yields.

    gRPC does not close a generator whose caller has gone: it would be closed some time after its call was freed, and
    whatever it then asked its context would end the process.
    """

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async with aclosing(behavior(request, context)) as responses:
            async for response in responses:
                try:
                    async with asyncio.timeout(stall_timeout):
                        await context.write(response)
                except TimeoutError:
                    end_soon()
                    message = f"the client took nothing for {stall_timeout:g} s"
                    raise Refused(Code.RESOURCE_EXHAUSTED, message, reason=Reason.STALLED) from None

    return call


@asynccontextmanager
async def _watched(
    context: grpc.aio.ServicerContext[Any, Any], method: str, malformed: RateLimitedLog
) -> AsyncIterator[None]:
    """Log the RPC at debug level, and turn what its handler raises into a status."""
    start = time.monotonic()
    try:
        yield
    except asyncio.CancelledError:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code="CANCELLED")
        raise
    except grpc.aio.AbortError as error:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code=_code(context))
        forget_frames(error)
        raise _ended() from None
    except Refused as refused:
        await _abort(context, refused.status)
    except MalformedMessage as error:
        malformed.tell(method=method, peer=context.peer(), error=str(error))
        await _abort(context, Status(Code.INVALID_ARGUMENT, f"the message cannot be parsed: {error}"))
    except Exception as error:
        # Nobody is there to be written to or aborted. (InternalError: a write came to nothing, for the call is over.)
        if isinstance(error, grpc.aio.InternalError) or (context.done() and isinstance(error, grpc.aio.BaseError)):
            log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, error=str(error))
            forget_frames(error)
            raise _ended() from None
        await _abort_internal(context, method)
    else:
        log.debug("rpc", method=method, peer=context.peer(), seconds=time.monotonic() - start, code=_code(context))


async def _abort_internal(context: grpc.aio.ServicerContext[Any, Any], method: str) -> NoReturn:
    error_id = secrets.token_hex(4)
    log.error("unexpected error in an RPC", method=method, peer=context.peer(), error_id=error_id, exc_info=True)
    await _abort(context, Status(Code.INTERNAL, f"internal error; the server's log has it as {error_id}"))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    """End the RPC with a status, or as it has ended: aborted by its handler, or left by its caller meanwhile."""
    if not context.done():
        try:
            with suppress(grpc.aio.InternalError, grpc.aio.UsageError):
                await abort(context, status)
        except grpc.aio.AbortError as error:
            forget_frames(error)
    raise _ended()


def forget_frames(error: BaseException) -> None:
    """Let an error, and those that led to it, refer to nothing that its handlers knew.

    gRPC's call keeps the error of an abort, the error its traceback, and that every frame of the handler, with the
    call and the request: a cycle, which would stay until Python looks for cycles. So do the error of a task and the
    handler's frame that waited for the task.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link.__traceback__, link.__context__, link = None, None, link.__context__


def _ended() -> asyncio.CancelledError:
    """What a handler whose RPC has ended already may end with: to anything else gRPC has something to say."""
    return asyncio.CancelledError()


def _code(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Name of the status the handler set; without one it is OK."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.OK.name
