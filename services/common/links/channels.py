"""gRPC channels to the ring's servers: opens them, checks health, waits until a server serves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.rpc.grpc_options import channel_options
from services.common.security.credentials import PLAINTEXT, PeerCredentials

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest received message in bytes, for callers without settings."""
_RETRY_PAUSE = 0.05
"""Seconds between two attempts of ``wait_serving``."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server of the ring, and how to dial it."""

    address: str
    """``host:port`` or ``unix:path``."""
    credentials: PeerCredentials = PLAINTEXT
    server_name: str | None = None
    """The name that the server's certificate must have; None: the address's host."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Largest received message in bytes."""

    def open(self) -> grpc.aio.Channel:
        """A channel; it connects when first used."""
        return self.credentials.open(self.address, self.server_name, channel_options(self.max_message_bytes))


async def check_health(channel: grpc.aio.Channel, service: str = "", seconds: float = 2.0) -> str:
    """The health of ``service`` ("": the whole server) in one word.

    SERVING, NOT_SERVING or SERVICE_UNKNOWN as the server answers; UNREACHABLE without an answer within ``seconds``.
    """
    stub: Any = health_pb2_grpc.HealthStub(channel)  # typed only for synchronous channels
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        return "SERVICE_UNKNOWN" if error.code() is grpc.StatusCode.NOT_FOUND else "UNREACHABLE"
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def wait_serving(endpoint: Endpoint) -> None:
    """Return when the whole server is SERVING, however long that takes.

    Each attempt opens a new channel: one that has failed for some seconds would wait for seconds to reconnect, even if
    the server already serves.
    """
    while True:
        async with endpoint.open() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            with suppress(grpc.aio.AioRpcError):  # the server does not listen yet, or stopped during the watch
                # No `async for`: an iterator that is left early keeps the call until it is garbage-collected.
                while (answer := await watch.read()) is not grpc.aio.EOF:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        watch.cancel()
                        return
        await asyncio.sleep(_RETRY_PAUSE)
