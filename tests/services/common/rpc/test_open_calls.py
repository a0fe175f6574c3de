"""Every call ends, whatever its client takes; and how many calls and connections one client may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.config.settings import ServerSettings
from services.common.rpc import handlers as message_handlers
from services.common.rpc.open_calls import CallRegistry, end_call_soon
from services.common.rpc.server import Server
from tests.abuse.wire import Connection, message
from tests.services.in_process import status_of
from tests.waiting import until

SERVICE = "test.CallRegistry"
SESSION, LOOKUP, HEALTH = f"/{SERVICE}/Session", f"/{SERVICE}/Lookup", "/grpc.health.v1.Health/Check"
ELSEWHERE = "127.0.0.2"
SECONDS = 30.0
LARGE = b"x" * 1_000_000


class Handlers:
    """A stream that writes, and ends when its client takes nothing for ``patience``; and a call with a large answer."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.sessions = 0
        self.peers: set[str] = set()

    async def session(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.sessions += 1
        self.peers.add(context.peer())
        async for _ in requests:
            try:
                async with asyncio.timeout(self.patience):
                    await context.write(LARGE)
            except TimeoutError:
                end_call_soon()
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "took nothing")

    async def lookup(self, request: bytes, context: Any) -> bytes:
        return LARGE


@asynccontextmanager
async def serving(
    age: float | None = None, patience: float = SECONDS, **changed: Any
) -> AsyncIterator[tuple[Server, Handlers]]:
    server = Server(ServerSettings(**changed), [SERVICE], max_connection_age=age)
    handlers = Handlers(patience)
    methods = {
        "Session": grpc.stream_stream_rpc_method_handler(handlers.session),
        "Lookup": grpc.unary_unary_rpc_method_handler(handlers.lookup),
    }
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    await server.start()
    try:
        yield server, handlers
    finally:
        await server.stop()


@asynccontextmanager
async def client(server: Server, **options: Any) -> AsyncIterator[Connection]:
    async with Connection(server.address, **options) as made:
        await made.send_preface()
        yield made


async def check(connection: Connection) -> None:
    """A whole call. ``grpc.aio`` refers to a server's first one for ever, and to its last one until the next comes."""
    stream = await connection.call(LOOKUP)
    await connection.send(stream, message(b""), last=True)
    await connection.wait_streams_ended(len(connection.ended) + 1)


@pytest.mark.parametrize("window", [0, 1000])
async def test_a_stream_is_reset_whose_client_never_takes_its_status(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.common.rpc.open_calls._STATUS_TIMEOUT", 0.1)
    async with serving(patience=0.1) as (server, handlers), client(server, window=window, reads=False) as connection:
        async with client(server) as another:
            await check(another)
        for number in range(20):
            stream = await connection.call(SESSION)
            await connection.send(stream, message(b"go"))
            await until(lambda number=number: handlers.sessions > number)
        async with client(server) as another:
            await until(lambda: server.open_calls == 0)
            await check(another)
        await connection.wait_streams_ended(20)
        assert not connection.lost, "other streams of the connection go on"


async def test_an_answer_that_is_not_taken_goes() -> None:
    async with serving(stall_timeout=0.2) as (server, _), client(server, window=0, reads=False) as connection:
        async with client(server) as another:
            await check(another)
            for _ in range(3):
                stream = await connection.call(LOOKUP)
                await connection.send(stream, message(b""), last=True)
            await asyncio.sleep(0.1)
            await until(lambda: server.open_calls == 0)
            await check(another)
        await connection.wait_streams_ended(3)


async def test_a_call_without_its_message_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_handlers, "MESSAGE_TIMEOUT", 0.1)
    async with serving() as (server, _), client(server) as connection:
        for _ in range(3):
            await connection.call(HEALTH)
            await connection.call(LOOKUP)
        await connection.wait_streams_ended(6)
        await until(lambda: server.open_calls == 0)


async def exchange(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    await call.write(b"go")
    assert await call.read() == LARGE


async def refused(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> str:
    """Why a call was refused, which says when to try again."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), SECONDS)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (status_of(caught.value).retry_after_ms or 0) > 0
    return str(caught.value.details())


async def test_who_has_most_calls_makes_room() -> None:
    async with serving(max_calls=4) as (server, _), grpc.aio.insecure_channel(server.address) as channel:
        make = channel.stream_stream(SESSION)
        calls = []
        for _ in range(4):
            calls.append(make())
            await exchange(calls[-1])
        assert "its share" in await refused(make())
        async with client(server, source=ELSEWHERE) as other:
            for number in (1, 2):
                stream = await other.call(SESSION)
                await other.send(stream, message(b"go"))
                await until(lambda number=number: other.received >= number * len(LARGE))
                assert "another client" in await refused(calls[-number])
            await other.send(await other.call(SESSION), message(b"go"))
            await other.wait_streams_ended(1)  # both have as many
        for call in calls[:2]:
            await exchange(call)
            call.cancel()
        await until(lambda: server.open_calls == 0)


async def test_a_client_may_have_so_many_connections_with_calls() -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        serving(max_connections_per_client=1) as (server, _),
        grpc.aio.insecure_channel(server.address, options=options) as one,
        grpc.aio.insecure_channel(server.address, options=options) as two,
    ):
        call = one.stream_stream(SESSION)()
        await exchange(call)
        assert "limit of 1 connections" in await refused(two.stream_stream(SESSION)())
        call.cancel()
        await until(lambda: server.open_calls == 0)
        call = two.stream_stream(SESSION)()
        await exchange(call)


async def test_calls_beyond_those_of_a_connection_are_reset() -> None:
    async with serving(max_streams_per_connection=4) as (server, _), client(server) as connection:
        for _ in range(8):
            await connection.call(SESSION)
        await connection.wait_streams_ended(4)
        assert not connection.lost


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with serving(max_connections=2) as (server, _), client(server) as one, client(server) as two:
        async with client(server) as three:
            await three.wait_closed()
        assert not one.lost
        assert not two.lost


async def test_who_has_many_connections_without_calls_makes_room_for_others() -> None:
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(serving(max_connections=64))
        other = await stack.enter_async_context(client(server, source=ELSEWHERE))
        busy = await stack.enter_async_context(client(server))
        stream = await busy.call(SESSION)
        await busy.send(stream, message(b"go"))
        await until(lambda: busy.received >= len(LARGE))
        flood = [await stack.enter_async_context(client(server)) for _ in range(100)]
        await until(lambda: all(one.is_served or one.lost for one in flood))
        await until(lambda: sum(not one.lost for one in flood) < 64 - 64 // 4)
        for _ in range(16):
            async with client(server, source=ELSEWHERE) as one:
                await check(one)
        assert not other.lost
        assert not busy.lost


async def test_a_connection_without_calls_is_closed() -> None:
    async with serving(connection_idle_timeout=0.2) as (server, _), client(server) as idle:
        await idle.wait_closed()
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for _ in range(2):
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
                await asyncio.sleep(0.5)  # the client dials again, unseen


async def test_new_calls_leave_an_old_connection_and_those_under_way_go_on() -> None:
    async with serving(age=0.2) as (server, handlers), grpc.aio.insecure_channel(server.address) as channel:
        old = channel.stream_stream(SESSION)()
        await exchange(old)
        while len(handlers.peers) < 2:
            await asyncio.sleep(0.05)
            new = channel.stream_stream(SESSION)()
            await exchange(new)
            new.cancel()
        await exchange(old)
        old.cancel()


async def test_a_flood_of_calls_leaves_turns_to_all_else() -> None:
    calls = CallRegistry(1000, 1000)
    happened: list[str] = []

    async def begin(name: str) -> None:
        await calls.wait_turn()
        happened.append(name)

    async def look_around() -> None:
        while len(happened) < 2000:
            happened.append("other")
            await asyncio.sleep(0)

    others = asyncio.create_task(look_around())
    flood = [asyncio.create_task(begin("call")) for _ in range(500)]
    await asyncio.sleep(0)
    flood[-1].cancel()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*flood, others, return_exceptions=True)
    together = max(len(part.split()) for part in " ".join(happened).split("other"))
    assert (happened.count("call"), together <= 64) == (499, True)
    await asyncio.wait_for(begin("late"), SECONDS)
