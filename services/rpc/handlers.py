"""A service's RPCs as gRPC calls them: requests are read as bytes, so that the service measures them before it parses.

gRPC keeps a single request as long as its call lasts, and reads it before it asks a handler. Here a handler reads it as
a stream's first message: only once the call is let in, for a limited time, and it is kept by nobody else.
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
Delivered = Callable[[str, int], None]
"""Told the peer and the size of every message that is whole."""

MESSAGE_TIMEOUT = 10.0
"""Seconds within which the message of a call with a single request must have come."""


class Incoming:
    """The messages of one call."""

    def __init__(self, context: Context, delivered: Delivered) -> None:
        self._context = context
        self._delivered = delivered

    async def read(self) -> bytes | None:
        """The next one; None after the last."""
        data = await self._context.read()
        if data is grpc.aio.EOF:
            return None
        self._delivered(self._context.peer(), len(data))
        message: bytes = data
        return message


def rpc_handlers(
    service: ServiceDescriptor, servicer: object, delivered: Delivered = lambda peer, size: None
) -> grpc.GenericRpcHandler:
    """Handlers for every RPC of ``service``: the coroutine methods of ``servicer`` of the same names.

    They take the bytes of the request, or of a stream the ``Incoming``, and the context. What they answer may be
    serialized: then nobody holds it as a message, which takes several times as much, until the client takes it.
    """
    handlers = {m.name: _handler(m, getattr(servicer, m.name), delivered) for m in service.methods}
    generic: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(service.full_name, handlers)
    return generic


def _handler(
    method: MethodDescriptor, behavior: Callable[..., Awaitable[Any]], delivered: Delivered
) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(_: object, context: Context) -> Any:
        if method.client_streaming:
            return await behavior(Incoming(context, delivered), context)
        return await behavior(await _whole(context, delivered), context)

    make = grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
    handler: grpc.RpcMethodHandler[Any, Any] = make(call, request_deserializer=None, response_serializer=_serialized)
    return handler


def _serialized(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


async def _whole(context: Context, delivered: Delivered) -> bytes:
    data: bytes = await only_message(context)
    delivered(context.peer(), len(data))
    return data


async def only_message(context: Context) -> Any:
    """The message of a call that has one, as its context reads it; raises ``Refused`` where none comes."""
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT):
            message = await context.read()
    except TimeoutError:
        raise Refused(Code.DEADLINE_EXCEEDED, f"no whole message within {MESSAGE_TIMEOUT:g} s") from None
    if message is grpc.aio.EOF:
        raise Refused(Code.INVALID_ARGUMENT, "the call ended without a message")
    return message
