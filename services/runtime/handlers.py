"""A service's RPCs as gRPC calls them: requests are read as bytes, so that the service measures them before it parses.

gRPC keeps a single request as long as its call lasts, and reads it before it asks a handler. Here a handler reads it as
a stream's first message: only once the call is let in, for a limited time, and it is kept by nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

Context = grpc.aio.ServicerContext[Any, Any]

MESSAGE_TIMEOUT = 10.0
"""Seconds within which the message of a call with a single request must have come."""


def rpc_handlers(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Handlers for every RPC of ``service``: the coroutine methods of ``servicer`` of the same names.

    They take the bytes of the request and the context; of a stream only the context, from which they read bytes.
    """
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
    generic: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(service.full_name, handlers)
    return generic


def _handler(method: MethodDescriptor, behavior: Callable[..., Awaitable[Any]]) -> grpc.RpcMethodHandler[Any, Any]:
    make = grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
    called = _without_iterator(behavior) if method.client_streaming else _with_message(behavior)
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        called, request_deserializer=None, response_serializer=methodcaller("SerializeToString")
    )
    return handler


def _without_iterator(behavior: Callable[[Context], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(_: object, context: Context) -> Any:
        return await behavior(context)

    return call


def _with_message(behavior: Callable[[bytes, Context], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(_: object, context: Context) -> Any:
        return await behavior(await only_message(context), context)

    return call


async def only_message(context: Context) -> Any:
    """The message of a call that has one, as its context reads it; ends the call where none comes."""
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT):
            message = await context.read()
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no whole message within {MESSAGE_TIMEOUT:g} s")
    if message is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a message")
    return message
