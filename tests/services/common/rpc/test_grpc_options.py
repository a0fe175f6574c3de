"""The options of both ends: gRPC knows their names (others it takes without a word), and they fit each other."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from ringline.channel import CHANNEL_OPTIONS

from services.common.config.settings import ServerSettings
from services.common.rpc.grpc_options import channel_options, server_options


@pytest.mark.parametrize(
    "options",
    [server_options(ServerSettings(), 4096, None), channel_options(1), CHANNEL_OPTIONS],
    ids=["server", "channel", "client"],
)
def test_grpc_knows_every_option(options: Any) -> None:
    with Path(cygrpc.__file__).open("rb") as library, mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as text:
        unknown = {name for name, _ in options if text.find(name.encode() + b"\0") < 0}
    assert not unknown


@asynccontextmanager
async def serving(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    """The address of a server that tells its health, and has ``handlers`` besides."""
    server = grpc.aio.server(options=server_options(ServerSettings(), 4096, None))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_compressed_messages_are_not_taken() -> None:
    """Else what a message takes would not be what came."""
    async with serving() as address, grpc.aio.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
        request = health_pb2.HealthCheckRequest(service="a" * 1000)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_idle_stream_of_a_client_that_pings_is_left_alone() -> None:
    """Else the third ping without data ends it (too_many_pings)."""
    options = [*(o for o in CHANNEL_OPTIONS if o[0] != "grpc.keepalive_time_ms"), ("grpc.keepalive_time_ms", 1_000)]
    async with serving() as address, grpc.aio.insecure_channel(address, options=options) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.read(), 4.5)
        watch.cancel()


async def test_little_more_is_taken_of_a_stream_that_nobody_reads_any_more() -> None:
    reads, message = 500, b"x" * (64 << 10)
    stop = asyncio.Event()

    async def handler(requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        for _ in range(reads):
            await anext(requests)
        await context.write(b"enough")
        await stop.wait()

    methods = {"Method": grpc.stream_stream_rpc_method_handler(handler)}
    service = grpc.method_handlers_generic_handler("Service", methods)
    async with serving(service) as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/Service/Method")()
        for _ in range(reads):
            await call.write(message)
        await call.read()
        more = 0
        while True:
            write = asyncio.ensure_future(call.write(message))
            await asyncio.wait((write,), timeout=2.0)
            if not write.done():
                break
            more += 1
        assert more * len(message) <= 1 << 20
        call.cancel()
        await asyncio.gather(write, return_exceptions=True)
        stop.set()
