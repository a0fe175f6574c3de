"""Links to engines: of several addresses that lead to one, one is used, and the next when that is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.types.v1 import link_pb2
from structlog.testing import capture_logs

from services.common.links.channels import Endpoint
from services.common.links.discovery import PeerDedup
from services.common.links.engine_link import EngineLink
from services.ring.identity import MAX_VERSION, PeerId

ME = PeerId("processor-0", 1)


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Welcomes whoever attaches. A peer that attaches again ends its earlier stream, as at a real engine."""

    def __init__(self, welcomes_as: str = "engine-0", version: int = MAX_VERSION) -> None:
        self.attached = 0
        self._welcome = link_pb2.Welcome(name=welcomes_as, incarnation=7, version=version)
        self._streams: dict[str, asyncio.Event] = {}

    async def GetModel(self, request, context):
        return engine_pb2.GetModelResponse(name="engine-0", incarnation=7)

    async def Attach(self, request_iterator, context):
        hello = (await anext(request_iterator)).hello
        self.attached += 1
        if hello.name in self._streams:
            self._streams[hello.name].set()
        superseded = self._streams[hello.name] = asyncio.Event()
        yield engine_pb2.AttachResponse(welcome=self._welcome)
        await superseded.wait()
        await context.abort(grpc.StatusCode.ABORTED, "superseded by a newer stream of the same peer")


class LinkEvents:
    """Records the events of all links of a process."""

    def __init__(self) -> None:
        self.get_model_calls: Counter[str] = Counter()
        self.queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._changed = asyncio.Condition()

    async def record_get_model(self, address: str) -> None:
        async with self._changed:
            self.get_model_calls[address] += 1
            self._changed.notify_all()

    async def wait_get_model(self, address: str, times: int) -> None:
        """Wait until ``address`` was asked ``times`` more times."""
        before = self.get_model_calls[address]
        async with self._changed:
            await self._changed.wait_for(lambda: self.get_model_calls[address] >= before + times)


class Owner:
    """Owns the link to one address, and records its events."""

    def __init__(self, address: str, events: LinkEvents) -> None:
        self._address, self._events = address, events
        self.queue = events.queue

    async def prepare(self, stub) -> engine_pb2.GetModelResponse:
        model = await stub.GetModel(engine_pb2.GetModelRequest())
        await self._events.record_get_model(self._address)
        return model

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        self.queue.put_nowait(("up", link.address))

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        pass

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        self.queue.put_nowait(("down", link.address))


@pytest.fixture
async def addresses(tmp_path: Path) -> AsyncIterator[tuple[FakeEngine, list[str]]]:
    server, fake_engine = grpc.aio.server(), FakeEngine()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(fake_engine, server)
    addresses = [f"unix:{tmp_path}/{name}.sock" for name in ("one", "other")]
    for address in addresses:
        server.add_insecure_port(address)
    await server.start()
    yield fake_engine, addresses
    await server.stop(0)


def dial(events: LinkEvents, dedup: PeerDedup, address: str) -> asyncio.Task[None]:
    link = EngineLink(Endpoint(address), ME, Owner(address, events), dedup, stall_timeout=5.0)
    return asyncio.create_task(link.run())


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_two_addresses_of_one_engine_make_one_link(addresses: tuple[FakeEngine, list[str]]) -> None:
    fake_engine, names = addresses
    events, dedup = LinkEvents(), PeerDedup()
    with capture_logs() as logs:
        tasks = {address: dial(events, dedup, address) for address in names}
        async with asyncio.timeout(20):
            kind, first = await events.queue.get()
            (second,) = set(names) - {first}
            await events.wait_get_model(second, 4)
        assert kind == "up"
        assert (fake_engine.attached, events.queue.empty(), events.get_model_calls[first]) == (1, True, 1)
        (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert (warning["address"], warning["used"], warning["peer"]) == (second, first, "engine-0")
        # The one that is used is lost, and the other takes its place.
        await end(tasks.pop(first))
        async with asyncio.timeout(20):
            assert await events.queue.get() == ("down", first)
            assert await events.queue.get() == ("up", second)
        await end(*tasks.values())


@pytest.mark.parametrize(
    ("fake_engine", "problem"),
    [
        (FakeEngine(welcomes_as="engine-1"), "answered: expected engine-0 with incarnation"),
        (FakeEngine(version=MAX_VERSION + 1), f"engine-0 chose version {MAX_VERSION + 1} of the contract"),
        (FakeEngine(version=0), "engine-0 names no version of the contract"),
    ],
)
async def test_whoever_welcomes_must_be_who_was_asked_and_speak_the_contract(
    fake_engine: FakeEngine, problem: str, tmp_path: Path
) -> None:
    """Behind one address may be several; what was learned of one says nothing of another."""
    server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(fake_engine, server)
    server.add_insecure_port(f"unix:{tmp_path}/e.sock")
    await server.start()
    events = LinkEvents()
    with capture_logs() as logs:
        task = dial(events, PeerDedup(), f"unix:{tmp_path}/e.sock")
        async with asyncio.timeout(20):
            await events.wait_get_model(f"unix:{tmp_path}/e.sock", 3)
        await end(task)
    assert events.queue.empty()
    assert any(problem in entry.get("reason", "") for entry in logs)
    await server.stop(0)


async def test_a_link_over_which_nothing_can_be_sent_is_dialled_again(addresses: tuple[FakeEngine, list[str]]) -> None:
    events, address = LinkEvents(), addresses[1][0]
    with capture_logs() as logs:
        link = EngineLink(Endpoint(address), ME, Owner(address, events), PeerDedup(), stall_timeout=5.0)
        task = asyncio.create_task(link.run())
        async with asyncio.timeout(20):
            assert (await events.queue.get())[0] == "up"
            link._commands.append(b"\xff")  # no command
            link._wake.set()
            assert [(await events.queue.get())[0] for _ in range(2)] == ["down", "up"]
        await end(task)
    assert any("cannot be written" in entry.get("reason", "") for entry in logs)
