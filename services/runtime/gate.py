"""Whom a server lets in: asked once for each RPC, before a message of it is taken. Health is open to all, for probes.

Where nobody is to be asked there is no gate, and nothing to pay for.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health

from services.ring.events import Refused
from services.runtime.handlers import only_message
from services.runtime.rate_limited_log import RateLimitedLog

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_OPEN = f"/{health.SERVICE_NAME}/"


class Gate(grpc.aio.ServerInterceptor):
    """Asks ``admit`` about every RPC. Comes after ``Guard``, which ends a call that is refused."""

    def __init__(self, admit: Callable[[Context, str], None]) -> None:
        """``admit`` gets the method, too. It raises ``Refused``; its text says why, and nothing of what was shown."""
        self._admit = admit
        self._denials = RateLimitedLog(log, "denied")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        return handler if handler is None or method.startswith(_OPEN) else self._gated(handler, method)

    def _gated(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> grpc.RpcMethodHandler[Any, Any]:
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        behavior = getattr(handler, "_".join(kind))

        async def given(requests: Any, context: Context) -> Any:
            return requests if handler.request_streaming else await only_message(context)

        async def answer(requests: Any, context: Context) -> Any:
            self._check(context, method)
            return await behavior(await given(requests, context), context)

        async def answers(requests: Any, context: Context) -> AsyncIterator[Any]:
            self._check(context, method)
            async with aclosing(behavior(await given(requests, context), context)) as responses:
                async for response in responses:
                    yield response

        gated = answers if inspect.isasyncgenfunction(behavior) else answer
        # gRPC takes a single request before it asks a handler, and a stream's when the handler wants it.
        make = getattr(grpc, f"stream_{kind[1]}_rpc_method_handler")
        return make(gated, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    def _check(self, context: Context, method: str) -> None:
        try:
            self._admit(context, method)
        except Refused as refused:
            code = refused.status.code.name
            self._denials.tell(method=method, peer=context.peer(), code=code, reason=str(refused))
            raise
