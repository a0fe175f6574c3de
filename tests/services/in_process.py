"""A service over gRPC in this process, and what an error of a call says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.rpc import status_pb2

from services.common.config.settings import ServerSettings
from services.common.rpc.call_interceptor import CallInterceptor
from services.common.rpc.grpc_options import server_options
from services.common.rpc.handlers import OnMessage, rpc_handlers
from services.common.rpc.open_calls import CallRegistry
from services.common.rpc.shared_messages import status_from_proto
from services.ring.errors import Status


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


def status_of(error: Any) -> Status:
    """With its details, where a server wrote some."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    code = status_pb2.Status(code=error.code().value[0])
    return status_from_proto(code if details is None else status_pb2.Status.FromString(details))
