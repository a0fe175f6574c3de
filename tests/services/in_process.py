"""A service over gRPC in this process, and waiting for what nobody is told of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from services.common.config.settings import ServerSettings
from services.common.rpc.call_interceptor import CallInterceptor
from services.common.rpc.grpc_options import server_options
from services.common.rpc.handlers import OnMessage, rpc_handlers
from services.common.rpc.open_calls import CallRegistry

T = TypeVar("T")


@asynccontextmanager
async def served(
    service: ServiceDescriptor,
    servicer: object,
    address: str = "127.0.0.1:0",
    *,
    on_call: OnMessage = lambda peer, size: None,
    on_message: OnMessage = lambda peer, size: None,
    settings: ServerSettings | None = None,
) -> AsyncIterator[int]:
    """Serve ``servicer`` as every service is served, without what guards the whole process; yields the port."""
    server = grpc.aio.server(
        interceptors=[CallInterceptor(CallRegistry(1000, 1000), 600.0, on_call)],
        options=server_options(settings or ServerSettings(), 1000, None),
    )
    port = server.add_insecure_port(address)
    server.add_generic_rpc_handlers((rpc_handlers(service, servicer, on_message),))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """What the condition says, once it is true."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110 - of state that tells nobody
            await asyncio.sleep(0.01)
    return found
