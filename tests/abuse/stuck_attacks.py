"""Attacks that hold on: calls that never begin, never end or are never read, and connections that say nothing."""

from __future__ import annotations

import asyncio

from ringline.engine.v1 import engine_pb2

from tests.abuse.client import DETOKENIZER, ENGINE, INFERENCE, Act, Attack, HostileClient
from tests.abuse.memory_attacks import attach, new_hello, submit
from tests.abuse.wire import CONTINUATION, HEADERS, PREFACE, SETTINGS, Connection, frame, headers, message

SESSIONS = 20
"""On one connection: a hundred clients have 2,000."""
HALF_OPEN = 500
FLOOD = 200
CONNECTIONS = 100
_BITE = 0.5
"""Seconds between the bytes of who is slow."""
_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
HEALTH, REFLECTION = "/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_METHODS = {
    "processor": INFERENCE + "ListModels",
    "engine": ENGINE + "GetModel",
    "detokenizer": DETOKENIZER + "Subscribe",
}


async def _unread_sessions(client: HostileClient) -> None:
    """Sessions that have no window for their first frame."""
    connection = await client.keep(window=0, reads=False)
    for _ in range(SESSIONS):
        await connection.call(INFERENCE + "Session")
    await connection.closed()


async def _silent_sessions(client: HostileClient) -> None:
    """Sessions that never ask for anything."""
    connection = await client.keep()
    for _ in range(SESSIONS):
        await connection.call(INFERENCE + "Session")
    await connection.closed()


async def _silent_attaches(client: HostileClient) -> None:
    """Peers that never say who they are."""
    connection = await client.keep()
    for _ in range(SESSIONS):
        await connection.call(ENGINE + "Attach")
    await connection.closed()


async def _superseding_attaches(client: HostileClient) -> None:
    """One peer in ever newer lives, on connections that never read."""
    connection = await client.keep(window=0, reads=False)
    for _ in range(FLOOD):
        await attach(client, connection, new_hello(client))


async def _storms(client: HostileClient) -> None:
    """Every command there is, to requests of its own and to none."""
    hello = new_hello(client)
    async with client.connection() as connection:
        stream = await attach(client, connection, hello)
        for number in range(20):
            wanted = submit(client, number, hello)
            named = {"request_id": wanted.request_id, "epoch": 1}
            commands = [engine_pb2.Command(submit=wanted)]
            for epoch in range(2, 50):
                redirect = engine_pb2.Redirect(request_id=wanted.request_id, epoch=epoch, deliver_to=hello.name)
                commands += [
                    engine_pb2.Command(redirect=redirect),
                    engine_pb2.Command(stop=engine_pb2.Stop(position=epoch, **named)),
                    engine_pb2.Command(cancel=engine_pb2.Cancel(request_id=f"none-{epoch}", epoch=epoch)),
                    engine_pb2.Command(done=engine_pb2.Done(request_id=f"none-{epoch}", epoch=epoch)),
                ]
            commands.append(engine_pb2.Command(done=engine_pb2.Done(request_id=wanted.request_id, epoch=100)))
            await connection.send(stream, message(engine_pb2.AttachRequest(commands=commands).SerializeToString()))


def _half_open(service: str) -> Act:
    async def act(client: HostileClient) -> None:
        """Calls that never send their message."""
        connection = await client.keep()
        for _ in range(HALF_OPEN):
            await connection.call(_METHODS[service])
        await connection.closed()

    return act


def _open_and_cancel(service: str) -> Act:
    async def act(client: HostileClient) -> None:
        async with client.connection() as connection:
            for _ in range(FLOOD):
                stream = await connection.call(_METHODS[service])
                await connection.send(stream, message(b""))
                await connection.reset(stream)

    return act


async def _watches(client: HostileClient) -> None:
    """Watches of health that never end, of names that no service has."""
    connection = await client.keep()
    for number in range(FLOOD):
        stream = await connection.call(HEALTH + "Watch")
        name = f"{client.number}.{number}".encode()
        await connection.send(stream, message(bytes((10, len(name))) + name), last=True)
    await connection.closed()


async def _reflections(client: HostileClient) -> None:
    """Questions to reflection whose answers nobody reads."""
    connection = await client.keep(window=1000, reads=False)
    for _ in range(SESSIONS):
        stream = await connection.call(REFLECTION)
        await connection.send(stream, message(b"\x3a\x00") * 50)
    await connection.closed()


async def _slow_handshakes(client: HostileClient) -> None:
    """Greetings a byte at a time, or none at all."""
    connection = await client.keep(greet=False)
    greeting = (PREFACE + frame(SETTINGS, 0, 0, b""))[: client.rng.choice((0, 100))]
    for byte in greeting:
        if not await connection.say(bytes((byte,))):
            return
        await asyncio.sleep(_BITE)
    await connection.closed()


async def _slow_headers(client: HostileClient) -> None:
    """Headers that never end, a few at a time."""
    connection = await client.keep()
    await connection.say(frame(HEADERS, 0, 1, headers()))
    more = frame(CONTINUATION, 0, 1, headers(**{"x-more": "y" * 100}))
    for _ in range(1000):
        if not await connection.say(more):
            return
        await asyncio.sleep(_BITE)


async def _garbage(client: HostileClient) -> None:
    """What is no HTTP/2, and TLS to a port that has none."""
    connection = await client.bare()
    try:
        data = client.rng.choice((_CLIENT_HELLO, client.rng.randbytes(2000), PREFACE + client.rng.randbytes(2000)))
        if await connection.say(data):
            await connection.closed()
    finally:
        await connection.close()


async def _connections(client: HostileClient) -> None:
    """As many connections as it may have, each with nothing on it."""
    made: list[Connection] = [await client.keep() for _ in range(CONNECTIONS)]
    await made[0].closed()


def _on_all(name: str, act: Act, *, lingers: bool = False, rounds: int = 1_000_000) -> list[Attack]:
    return [Attack(name, service, act, rounds, lingers) for service in _METHODS]


STUCK_ATTACKS = (
    Attack("unread sessions", "processor", _unread_sessions, lingers=True),
    Attack("silent sessions", "processor", _silent_sessions),
    Attack("silent attaches", "engine", _silent_attaches, lingers=True),
    Attack("superseding attaches", "engine", _superseding_attaches, rounds=5, lingers=True),
    Attack("storms", "engine", _storms),
    *(Attack("half-open calls", service, _half_open(service), lingers=True) for service in _METHODS),
    *(Attack("open and cancel", service, _open_and_cancel(service)) for service in _METHODS),
    *_on_all("watches", _watches),
    *_on_all("unread reflection", _reflections, lingers=True),
    *_on_all("slow handshakes", _slow_handshakes, lingers=True),
    *_on_all("slow headers", _slow_headers),
    *_on_all("garbage", _garbage),
    *_on_all("connections", _connections, rounds=1),
)
