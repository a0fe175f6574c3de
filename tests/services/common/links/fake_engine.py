"""An engine over gRPC that welcomes whoever attaches, and computes nothing; and who has links to such engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.types.v1 import link_pb2

from services.common.links.engine_link import EngineLink
from services.common.links.zone import tell_zone
from services.ring.identity import PeerId
from tests.waiting import until

INCARNATION = 7


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """A peer that attaches again ends its earlier stream, as at a real engine."""

    def __init__(self, name: str = "engine-0", *, welcomes_as: str | None = None, zone: str | None = None) -> None:
        self.attached = 0
        self._name, self._welcomes_as = name, welcomes_as or name
        self._zone = zone
        self._streams: dict[str, asyncio.Event] = {}

    async def GetModel(self, request, context):
        return engine_pb2.GetModelResponse(name=self._name, incarnation=INCARNATION)

    async def Attach(self, request_iterator, context):
        hello = (await anext(request_iterator)).hello
        await tell_zone(context, self._zone)
        self.attached += 1
        if hello.name in self._streams:
            self._streams[hello.name].set()
        superseded = self._streams[hello.name] = asyncio.Event()
        welcome = link_pb2.Welcome(name=self._welcomes_as, incarnation=INCARNATION, version=1)
        yield engine_pb2.AttachResponse(welcome=welcome)
        await superseded.wait()
        await context.abort(grpc.StatusCode.ABORTED, "superseded by a newer stream of the same peer")


class Owner:
    """Of links: counts how often it asks for the model, and keeps which engines are attached, and what it heard."""

    def __init__(self, events: asyncio.Queue[tuple[str, str]] | None = None) -> None:
        self.events = events or asyncio.Queue()
        """Several owners may share them."""
        self.asked = 0
        self.up: dict[str, str] = {}
        """Addresses, by the names of engines."""

    async def prepare(self, stub) -> engine_pb2.GetModelResponse:
        model = await stub.GetModel(engine_pb2.GetModelRequest())
        self.asked += 1
        return model

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        assert engine.name not in self.up, "linked twice"
        self.up[engine.name] = link.address
        self.events.put_nowait(("up", link.address))

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        pass

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        del self.up[engine.name]
        self.events.put_nowait(("down", link.address))

    async def until(self, *names: str) -> None:
        """Wait until exactly these are attached."""
        await until(lambda: self.up.keys() == set(names), 20)


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
