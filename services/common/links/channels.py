"""gRPC channels to the ring's servers: opens them, checks health, waits until a server serves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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


def open_channel(
    address: str,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    *,
    credentials: PeerCredentials = PLAINTEXT,
    server_name: str | None = None,
) -> grpc.aio.Channel:
    """A channel to ``address`` (``host:port`` or ``unix:path``); it connects when first used.

    ``server_name``: the name that the server's certificate must have, if not the address's host.
    """
    return credentials.open(address, server_name, channel_options(max_message_bytes))


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


async def wait_serving(
    address: str, *, credentials: PeerCredentials = PLAINTEXT, server_name: str | None = None
) -> None:
    """Return when the whole server at ``address`` is SERVING, however long that takes.

    Each attempt opens a new channel: one that has failed for some seconds would wait for seconds before it connects
    again, even if the server serves by then.
    """
    while True:
        async with open_channel(address, credentials=credentials, server_name=server_name) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            with suppress(grpc.aio.AioRpcError):  # the server does not listen yet, or stopped during the watch
                # No `async for`: an iterator that is left early keeps the call until it is garbage-collected.
                while (answer := await watch.read()) is not grpc.aio.EOF:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        watch.cancel()
                        return
        await asyncio.sleep(_RETRY_PAUSE)
