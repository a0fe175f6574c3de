"""A service over gRPC in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from services.common.config.settings import ServerSettings
from services.common.rpc.call_interceptor import CallInterceptor
from services.common.rpc.grpc_options import server_options
from services.common.rpc.handlers import OnMessage, rpc_handlers
from services.common.rpc.open_calls import CallRegistry


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
