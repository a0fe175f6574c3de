"""The RPC handlers of a service. Requests stay bytes, so that the service can limit them before it parses them.

gRPC would read a single request before it calls a handler, and keep it as long as the call lasts. Here the handler
reads it as a stream's first message: after the call was admitted, within a time limit, and only the handler holds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from services.ring.errors import Code, Refused

Context = grpc.aio.ServicerContext[Any, Any]
Authorize = Callable[[Context, str], None]
"""``authorize(context, method)`` raises ``Refused``; its text must not quote tokens or certificates."""
OnMessage = Callable[[str, int], None]
"""Called with the peer (as gRPC writes it) and the size of every message that has arrived."""

MESSAGE_TIMEOUT = 10.0
"""Seconds within which the message of a call with a single request must arrive."""


class RequestStream:
    """The requests of one streaming call."""

    def __init__(self, context: Context, on_message: OnMessage) -> None:
        self._context = context
        self._on_message = on_message

    async def read(self) -> bytes | None:
        """The next message; None after the last."""
        data = await self._context.read()
        if data is grpc.aio.EOF:
            return None
        self._on_message(self._context.peer(), len(data))
        message: bytes = data
        return message


def rpc_handlers(
    service: ServiceDescriptor, servicer: object, on_message: OnMessage = lambda peer, size: None
) -> grpc.GenericRpcHandler:
    """Handlers for every RPC of ``service``: the coroutine methods of ``servicer`` of the same names.

    A method takes the request's bytes, or a ``RequestStream``, and the context. It may answer with serialized bytes:
    until the client reads the answer they take a fraction of a message's memory.
    """
    handlers = {m.name: _handler(m, getattr(servicer, m.name), on_message) for m in service.methods}
    generic: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(service.full_name, handlers)
    return generic


def _handler(
    method: MethodDescriptor, behavior: Callable[..., Awaitable[Any]], on_message: OnMessage
) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(_: object, context: Context) -> Any:
        if method.client_streaming:
            return await behavior(RequestStream(context, on_message), context)
        data = await read_single_request(context)
        on_message(context.peer(), len(data))
        return await behavior(data, context)

    make = grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
    handler: grpc.RpcMethodHandler[Any, Any] = make(call, request_deserializer=None, response_serializer=_serialized)
    return handler


def _serialized(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


async def read_single_request(context: Context) -> Any:
    """The message of a call with a single request; raises ``Refused`` if none arrives in time."""
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT):
            message = await context.read()
    except TimeoutError:
        raise Refused(Code.DEADLINE_EXCEEDED, f"no complete message within {MESSAGE_TIMEOUT:g} s") from None
    if message is grpc.aio.EOF:
        raise Refused(Code.INVALID_ARGUMENT, "the call ended without a message")
    return message
