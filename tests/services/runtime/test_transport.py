"""The options of both ends: gRPC knows their names (others it takes without a word), and they fit each other."""

from __future__ import annotations

import asyncio
import mmap
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from ringline.channel import CHANNEL_OPTIONS

from services.runtime.transport import channel_options, server_options


@pytest.mark.parametrize(
    "options", [server_options(1), channel_options(1), CHANNEL_OPTIONS], ids=["server", "channel", "client"]
)
def test_grpc_knows_every_option(options: Any) -> None:
    with Path(cygrpc.__file__).open("rb") as library, mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as text:
        unknown = {name for name, _ in options if text.find(name.encode() + b"\0") < 0}
    assert not unknown


async def test_an_idle_stream_of_a_client_that_pings_is_left_alone(tmp_path: Path) -> None:
    """Else the third ping without data ends it (too_many_pings)."""
    server = grpc.aio.server(options=server_options(1 << 20))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    server.add_insecure_port(f"unix:{tmp_path}/server.sock")
    await server.start()
    options = [*(o for o in CHANNEL_OPTIONS if o[0] != "grpc.keepalive_time_ms"), ("grpc.keepalive_time_ms", 1_000)]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/server.sock", options=options) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.read(), 4.5)
        watch.cancel()
    await server.stop(None)
