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

from services.peers.engine_link import EngineLink
from services.peers.redial import PeerDedup
from services.ring.identity import MAX_VERSION, PeerId

ME = PeerId("processor-0", 1)


class OneDoor(engine_pb2_grpc.EngineServiceServicer):
    """An engine as its door behaves: a peer that attaches again ends its earlier stream."""

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
        await context.abort(grpc.StatusCode.ABORTED, "a newer stream of the same peer took this one's place")


class Diary:
    """What the links of a process lived through."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._asked = asyncio.Condition()

    async def note_asked(self, address: str) -> None:
        async with self._asked:
            self.asked[address] += 1
            self._asked.notify_all()

    async def asked_again(self, address: str, times: int) -> None:
        """Wait until an address was asked so often from now on."""
        before = self.asked[address]
        async with self._asked:
            await self._asked.wait_for(lambda: self.asked[address] >= before + times)


class Owner:
    """Of the link to one address."""

    def __init__(self, address: str, diary: Diary) -> None:
        self._address, self._diary = address, diary
        self.news = diary.news

    async def prepare(self, stub) -> engine_pb2.GetModelResponse:
        model = await stub.GetModel(engine_pb2.GetModelRequest())
        await self._diary.note_asked(self._address)
        return model

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        self.news.put_nowait(("up", link.address))

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        pass

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        self.news.put_nowait(("down", link.address))


@pytest.fixture
async def addresses(tmp_path: Path) -> AsyncIterator[tuple[OneDoor, list[str]]]:
    server, door = grpc.aio.server(), OneDoor()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(door, server)
    addresses = [f"unix:{tmp_path}/{name}.sock" for name in ("one", "other")]
    for address in addresses:
        server.add_insecure_port(address)
    await server.start()
    yield door, addresses
    await server.stop(0)


def dial(diary: Diary, dedup: PeerDedup, address: str) -> asyncio.Task[None]:
    link = EngineLink(address, ME, Owner(address, diary), dedup, stall_timeout=5.0, max_message_bytes=1 << 22)
    return asyncio.create_task(link.run())


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_two_addresses_of_one_engine_make_one_link(addresses: tuple[OneDoor, list[str]]) -> None:
    door, names = addresses
    diary, dedup = Diary(), PeerDedup()
    with capture_logs() as logs:
        tasks = {address: dial(diary, dedup, address) for address in names}
        async with asyncio.timeout(20):
            kind, first = await diary.news.get()
            (second,) = set(names) - {first}
            await diary.asked_again(second, 4)
        assert kind == "up"
        assert (door.attached, diary.news.empty(), diary.asked[first]) == (1, True, 1)
        (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert (warning["address"], warning["used"], warning["peer"]) == (second, first, "engine-0")
        # The one that is used is lost, and the other takes its place.
        await end(tasks.pop(first))
        async with asyncio.timeout(20):
            assert await diary.news.get() == ("down", first)
            assert await diary.news.get() == ("up", second)
        await end(*tasks.values())


@pytest.mark.parametrize(
    ("door", "problem"),
    [
        (OneDoor(welcomes_as="engine-1"), "answered in the place of engine-0"),
        (OneDoor(version=MAX_VERSION + 1), f"engine-0 chose version {MAX_VERSION + 1} of the contract"),
        (OneDoor(version=0), "engine-0 names no version of the contract"),
    ],
)
async def test_whoever_welcomes_must_be_who_was_asked_and_speak_the_contract(
    door: OneDoor, problem: str, tmp_path: Path
) -> None:
    """Behind one address may be several; what was learned of one says nothing of another."""
    server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(door, server)
    server.add_insecure_port(f"unix:{tmp_path}/e.sock")
    await server.start()
    diary = Diary()
    with capture_logs() as logs:
        task = dial(diary, PeerDedup(), f"unix:{tmp_path}/e.sock")
        async with asyncio.timeout(20):
            await diary.asked_again(f"unix:{tmp_path}/e.sock", 3)
        await end(task)
    assert diary.news.empty()
    assert any(problem in entry.get("reason", "") for entry in logs)
    await server.stop(0)


async def test_a_link_over_which_nothing_can_be_sent_is_dialled_again(addresses: tuple[OneDoor, list[str]]) -> None:
    diary, address = Diary(), addresses[1][0]
    with capture_logs() as logs:
        link = EngineLink(address, ME, Owner(address, diary), PeerDedup(), stall_timeout=5.0, max_message_bytes=1 << 22)
        task = asyncio.create_task(link.run())
        async with asyncio.timeout(20):
            assert (await diary.news.get())[0] == "up"
            link._commands.append(b"\xff")  # no command
            link._wake.set()
            assert [(await diary.news.get())[0] for _ in range(2)] == ["down", "up"]
        await end(task)
    assert any("cannot be written" in entry.get("reason", "") for entry in logs)
