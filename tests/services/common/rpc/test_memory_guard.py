"""What is held of messages that are not whole costs whoever sent it the connection, and nobody else."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from ringline.inference.v1 import inference_pb2
from structlog.testing import capture_logs

from services.common.config.settings import ServerSettings
from services.common.process.memory import limit_malloc_retention, resident_memory
from services.common.rpc import memory_guard
from services.common.rpc.connections import AcceptedConnection, accepted_connections, close_connection
from services.common.rpc.handlers import RequestStream
from services.common.rpc.memory_guard import MemoryGuard
from services.common.rpc.server import Server
from tests.abuse.wire import Connection
from tests.programs import output_of
from tests.services.in_process import served
from tests.waiting import until

DESCRIPTION = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
SESSION = f"/{DESCRIPTION.full_name}/Session"
MESSAGE = 2 << 20
STREAMS = 12
BUDGET = 16 << 20
MIB = 1 << 20
PEER = "ipv4:10.0.0.1:5000"


class Echo:
    """Answers nothing to anything, but tells how much came."""

    def __init__(self) -> None:
        self.received = 0

    async def Session(self, incoming: RequestStream, context: grpc.aio.ServicerContext) -> None:
        while (data := await incoming.read()) is not None:
            self.received += len(data)
            del data  # the next one may never come

    async def Generate(self, data: bytes, context: grpc.aio.ServicerContext) -> None:
        self.received += len(data)

    Embed = Score = Classify = Tokenize = Detokenize = ListModels = Generate
    LoadAdapter = UnloadAdapter = ListAdapters = Generate


@asynccontextmanager
async def greeted(place: str | int) -> AsyncIterator[Connection]:
    async with Connection(f"127.0.0.1:{place}" if isinstance(place, int) else place) as connection:
        await connection.send_preface()
        yield connection


@asynccontextmanager
async def guarded(servicer: Echo, budget: int = BUDGET, baseline: int = 0) -> AsyncIterator[tuple[int, MemoryGuard]]:
    """A server with a guard that looks only when the test asks it to; and the server's port."""
    settings = ServerSettings(max_message_bytes=MESSAGE)
    async with served(
        DESCRIPTION,
        servicer,
        on_call=lambda peer, size: guard.on_call(peer, size),
        on_message=lambda peer, size: guard.on_message(peer, size),
        settings=settings,
    ) as port:
        guard = MemoryGuard(port, budget, baseline)
        yield port, guard
        guard.stop()


@pytest.fixture
def sizes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last item is the resident memory that the guard reads."""
    sizes = [0]
    monkeypatch.setattr(memory_guard, "resident_memory", lambda: sizes[-1])
    return sizes


async def test_connections_that_hold_much_of_unfinished_messages_are_closed(sizes_read: list[int]) -> None:
    echo = Echo()
    async with (
        guarded(echo) as (port, guard),
        greeted(port) as hostile,
        greeted(port) as busy,
        greeted(port) as idle,
    ):
        stream = await busy.call(SESSION)
        whole = b"\0" + struct.pack(">I", MESSAGE) + bytes(MESSAGE)
        for _ in range(STREAMS):
            await busy.send(stream, whole)
        for _ in range(STREAMS):
            await hostile.send(await hostile.call(SESSION), whole[:-1])
        await until(lambda: echo.received >= STREAMS * MESSAGE)
        sent = busy.sent + hostile.sent + idle.sent
        await until(lambda: sum(one.bytes_received for one in accepted_connections(port)) >= sent)
        sizes_read.append(BUDGET // 2)
        with capture_logs() as logs:
            guard.check()
            await hostile.wait_closed()
        closed = [log["connections"] for log in logs if log["event"] == "memory is short: closed connections"]
        assert closed == [1]
        assert not busy.lost
        assert not idle.lost


async def hoard_until_closed() -> None:
    """With the real guard and the real size of this process: what was hoarded is gone when its connection is closed.

    The first server of a process keeps 5 MiB, up to 12 on a busy machine: the budget is well above that.
    """
    limit_malloc_retention()
    before, budget = resident_memory(), 3 * BUDGET
    async with guarded(Echo(), budget, before) as (port, guard), greeted(port) as hostile:
        for _ in range(3 * STREAMS):
            await hostile.send(await hostile.call(SESSION), struct.pack(">?I", False, MESSAGE) + bytes(MESSAGE - 1))
        await until(lambda: resident_memory() >= before + budget // 2)  # gRPC says nothing of what it holds
        guard.start()
        await asyncio.wait_for(hostile.wait_closed(), 60)
        await until(lambda: resident_memory() <= before + budget // 2)


def test_what_was_hoarded_is_gone_when_its_connection_is_closed() -> None:
    """In a process of its own: in this one, tests before it left memory free that would hide what is held."""
    code = f"import asyncio; from {__name__} import hoard_until_closed; asyncio.run(hoard_until_closed())"
    output_of(sys.executable, "-c", code)


class Answering(Echo):
    """Answers every message of a Session."""

    async def Session(self, incoming: RequestStream, context: grpc.aio.ServicerContext) -> None:
        while (data := await incoming.read()) is not None:
            self.received += len(data)
            await context.write(b"answer")


async def test_what_was_hoarded_slowly_counts_when_memory_is_short(sizes_read: list[int]) -> None:
    async with guarded(Echo()) as (port, guard), greeted(port) as hoarder, greeted(port) as idle:
        for _ in range(8):
            part = struct.pack(">?I", False, MESSAGE) + bytes(MESSAGE // 8)
            await hoarder.send(await hoarder.call(SESSION), part)
            await until(lambda: max(one.bytes_received for one in accepted_connections(port)) >= hoarder.sent)
            for _ in range(100):
                guard.check()
        assert not hoarder.lost, "there is memory"
        sizes_read.append(BUDGET // 2)
        guard.check()
        await hoarder.wait_closed()
        assert not idle.lost
        await until(lambda: len(list(accepted_connections(port))) == 1)  # the server's descriptor, until it closes it
        (one,) = accepted_connections(port)
        close_connection(one)
        await idle.wait_closed()
        close_connection(one)  # it is over, and its descriptor may be another's


async def test_who_sends_and_takes_many_messages_is_not_closed(sizes_read: list[int]) -> None:
    echo = Answering()
    sizes_read.append(1 << 19)
    async with (
        guarded(echo, budget=1 << 20) as (port, guard),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        session = channel.stream_stream(SESSION)()
        while next(accepted_connections(port), None) is None or next(
            accepted_connections(port)
        ).bytes_received < echo.received + (1 << 18):
            for _ in range(100):
                await session.write(b"message")
            for _ in range(100):
                assert await session.read() == b"answer"
        for _ in range(100):
            guard.check()
        await session.write(b"message")
        assert await session.read() == b"answer"
        await session.done_writing()
        assert await session.read() == grpc.aio.EOF


class Machine:
    """As the guard sees it: how much memory the process has, and which connections; and which the guard has closed."""

    def __init__(self) -> None:
        self.resident = 0
        self.connections: list[AcceptedConnection] = []
        self.closed: list[AcceptedConnection] = []

    def accept(self, received: int, *, inode: int = 1, taken: int = 0) -> None:
        """This connection, and no other."""
        self.connections = [AcceptedConnection(("10.0.0.1", 5000), 7, inode, received, taken, 0.0)]

    def closes(self, guard: MemoryGuard, resident: int, times: int = 1) -> list[AcceptedConnection]:
        """All that is closed once the guard has looked so many times at so much memory."""
        self.resident = resident
        for _ in range(times):
            guard.check()
        return self.closed


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(memory_guard, "resident_memory", lambda: made.resident)
    monkeypatch.setattr(memory_guard, "accepted_connections", lambda port: list(made.connections))
    monkeypatch.setattr(memory_guard, "close_connection", made.closed.append)
    return made


@pytest.mark.parametrize(
    ("messages", "size", "received", "taken"),
    [
        (100_000, 10, 100_000 * (10 + 130), 0),
        (100, MIB, 100 * (MIB + MIB // 300), 0),
        (1, 0, 500_000, 1000 * 500_000),
    ],
)
def test_framing_has_an_allowance_but_none_at_the_budget(
    messages: int, size: int, received: int, taken: int, machine: Machine
) -> None:
    guard = MemoryGuard(1, MIB)
    for _ in range(messages):
        guard.on_message(PEER, size)
    machine.accept(received, taken=taken)
    assert not machine.closes(guard, MIB // 2)
    assert machine.closes(guard, MIB, times=20)


def test_the_metadata_of_calls_has_an_allowance(machine: Machine) -> None:
    guard = MemoryGuard(1, MIB)
    for _ in range(1000):
        guard.on_call(PEER, 1000)
    machine.accept(1000 * 1000)
    assert not machine.closes(guard, MIB // 2)
    for _ in range(100_000):
        guard.on_call(PEER, 1000)
    assert machine.closes(guard, MIB * 9 // 10, times=20), "no more than what was received"


def test_who_hoards_is_closed_before_who_sends_many_messages(machine: Machine) -> None:
    guard = MemoryGuard(1, MIB)
    for _ in range(100_000):
        guard.on_message(PEER, 10)
    link = AcceptedConnection(("10.0.0.1", 5000), 7, 1, 100_000 * (10 + 130), 0, 0.0)
    hoarder = AcceptedConnection(("10.0.0.2", 5000), 8, 2, 500_000, 0, 0.0)
    machine.connections = [link, hoarder]
    assert machine.closes(guard, MIB * 9 // 10) == [hoarder]
    machine.connections = [link]
    assert machine.closes(guard, MIB * 9 // 10, times=5) == [hoarder], "gRPC may have yet to free what it held"
    assert link in machine.closes(guard, MIB, times=20)


def test_nothing_is_closed_where_that_could_not_help(machine: Machine) -> None:
    guard = MemoryGuard(1, 1024 * MIB)
    machine.accept(35 * MIB)
    assert not machine.closes(guard, 612 * MIB), "356 MiB are too much"
    machine.accept(36 * MIB)
    assert machine.closes(guard, 612 * MIB, times=20)


def test_another_connection_from_the_same_port_has_delivered_nothing(machine: Machine) -> None:
    guard = MemoryGuard(1, MIB)
    guard.on_message(PEER, MIB)
    machine.accept(MIB)
    assert not machine.closes(guard, MIB // 2)
    machine.accept(MIB, inode=2)
    assert machine.closes(guard, MIB // 2, times=20)


def test_memory_that_stays_short_is_trimmed_seldom(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(memory_guard, "trim_malloc", lambda: trims.append(machine.resident))
    guard = MemoryGuard(1, 1024 * MIB)
    machine.accept(0)
    machine.closes(guard, 512 * MIB, times=100)
    assert len(trims) == 5
    machine.closes(guard, 600 * MIB)
    assert len(trims) == 6, "it grows"
    machine.accept(500 * MIB)
    assert len(machine.closes(guard, 600 * MIB, times=20)) == 1
    machine.accept(0)
    machine.closes(guard, 600 * MIB)
    assert len(trims) == 8, "something was closed"


async def test_on_a_unix_socket_memory_is_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trims = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(memory_guard, "_IDLE_CHECKS", 1)
    monkeypatch.setattr(memory_guard, "resident_memory", lambda: 1 << 30)
    monkeypatch.setattr(memory_guard, "trim_malloc", lambda: loop.call_soon_threadsafe(trims.set))
    server = Server(ServerSettings(uds=str(tmp_path / "socket")), [DESCRIPTION.full_name])
    server.add_service(DESCRIPTION, Echo())
    address = await server.start()
    async with greeted(address) as connection:
        await connection.send(await connection.call(SESSION), bytes(1 << 16))
        server.start_memory_guard()
        await asyncio.wait_for(trims.wait(), 60)
        assert not connection.lost
    await server.stop()
