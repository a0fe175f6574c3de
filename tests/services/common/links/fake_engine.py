"""An engine over gRPC that welcomes whoever attaches, and computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.types.v1 import link_pb2

INCARNATION = 7


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """A peer that attaches again ends its earlier stream, as at a real engine."""

    def __init__(self, name: str = "engine-0", *, welcomes_as: str | None = None) -> None:
        self.attached = 0
        self._name, self._welcomes_as = name, welcomes_as or name
        self._streams: dict[str, asyncio.Event] = {}

    async def GetModel(self, request, context):
        return engine_pb2.GetModelResponse(name=self._name, incarnation=INCARNATION)

    async def Attach(self, request_iterator, context):
        hello = (await anext(request_iterator)).hello
        self.attached += 1
        if hello.name in self._streams:
            self._streams[hello.name].set()
        superseded = self._streams[hello.name] = asyncio.Event()
        welcome = link_pb2.Welcome(name=self._welcomes_as, incarnation=INCARNATION, version=1)
        yield engine_pb2.AttachResponse(welcome=welcome)
        await superseded.wait()
        await context.abort(grpc.StatusCode.ABORTED, "superseded by a newer stream of the same peer")


@asynccontextmanager
async def serving(engine: FakeEngine, *hosts: str, port: int = 0) -> AsyncIterator[tuple[int, grpc.aio.Server]]:
    """Listen on one port of several addresses of this machine."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    engine_pb2_grpc.add_EngineServiceServicer_to_server(engine, server)
    for host in hosts:
        port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    try:
        yield port, server
    finally:
        await server.stop(0)
