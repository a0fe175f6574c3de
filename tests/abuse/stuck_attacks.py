"""Attacks that occupy calls and connections: calls that never begin or end, unread answers, silent connections."""

from __future__ import annotations

import asyncio
from typing import Any

from ringline.engine.v1 import engine_pb2

from tests.abuse.client import DETOKENIZER, ENGINE, INFERENCE, Act, Attack, HostileClient
from tests.abuse.memory_attacks import attach, new_hello, submit
from tests.abuse.wire import CONTINUATION, HEADERS, PREFACE, SETTINGS, Connection, frame, headers, message

SESSIONS = 20
"""Per connection; a hundred clients have 2,000."""
HALF_OPEN = 500
MANY = 200
CONNECTIONS = 100
_SLOW_PAUSE = 0.5
"""Seconds between two writes of a slow client."""
_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
HEALTH, REFLECTION = "/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_SESSION = INFERENCE + "Session"
_METHODS = {
    "processor": INFERENCE + "ListModels",
    "engine": ENGINE + "GetModel",
    "detokenizer": DETOKENIZER + "Subscribe",
}


def _silent_calls(method: str, count: int, **connection: Any) -> Act:
    """Calls that never send a message, nor, with a window of 0, take one."""

    async def act(client: HostileClient) -> None:
        opened = await client.lasting_connection(**connection)
        for _ in range(count):
            await opened.call(method)
        await opened.wait_closed()

    return act


async def _superseding_attaches(client: HostileClient) -> None:
    """One peer that attaches in ever newer incarnations, and never reads."""
    connection = await client.lasting_connection(window=0, reads=False)
    for _ in range(MANY):
        await attach(client, connection, new_hello(client))


async def _storms(client: HostileClient) -> None:
    """Every kind of command, for its own requests and for unknown ones."""
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


async def _open_and_cancel(client: HostileClient) -> None:
    async with client.connection() as connection:
        for _ in range(MANY):
            stream = await connection.call(_METHODS[client.service])
            await connection.send(stream, message(b""))
            await connection.reset(stream)


async def _watches(client: HostileClient) -> None:
    """Endless health Watch calls for unknown services."""
    connection = await client.lasting_connection()
    for number in range(MANY):
        stream = await connection.call(HEALTH + "Watch")
        name = f"{client.number}.{number}".encode()
        await connection.send(stream, message(bytes((10, len(name))) + name), last=True)
    await connection.wait_closed()


async def _reflections(client: HostileClient) -> None:
    """Reflection calls whose answers nobody reads."""
    connection = await client.lasting_connection(window=1000, reads=False)
    for _ in range(SESSIONS):
        stream = await connection.call(REFLECTION)
        await connection.send(stream, message(b"\x3a\x00") * 50)
    await connection.wait_closed()


async def _slow_handshakes(client: HostileClient) -> None:
    """HTTP/2 prefaces sent byte by byte, or not at all."""
    connection = await client.lasting_connection(preface=False)
    preface = (PREFACE + frame(SETTINGS, 0, 0, b""))[: client.rng.choice((0, 100))]
    for byte in preface:
        if not await connection.write(bytes((byte,))):
            return
        await asyncio.sleep(_SLOW_PAUSE)
    await connection.wait_closed()


async def _slow_headers(client: HostileClient) -> None:
    """Endless CONTINUATION frames, sent slowly."""
    connection = await client.lasting_connection()
    await connection.write(frame(HEADERS, 0, 1, headers()))
    more = frame(CONTINUATION, 0, 1, headers(**{"x-more": "y" * 100}))
    for _ in range(1000):
        if not await connection.write(more):
            return
        await asyncio.sleep(_SLOW_PAUSE)


async def _garbage(client: HostileClient) -> None:
    """Random bytes, and TLS to a plaintext port."""
    connection = await client.silent_connection()
    try:
        data = client.rng.choice((_CLIENT_HELLO, client.rng.randbytes(2000), PREFACE + client.rng.randbytes(2000)))
        if await connection.write(data):
            await connection.wait_closed()
    finally:
        await connection.close()


async def _connections(client: HostileClient) -> None:
    """Many idle connections."""
    made: list[Connection] = [await client.lasting_connection() for _ in range(CONNECTIONS)]
    await made[0].wait_closed()


def _on_all(name: str, act: Act, *, lingers: bool = False, rounds: int = 1_000_000) -> list[Attack]:
    return [Attack(name, service, act, rounds, lingers) for service in _METHODS]


STUCK_ATTACKS = (
    Attack("unread sessions", "processor", _silent_calls(_SESSION, SESSIONS, window=0, reads=False), lingers=True),
    Attack("silent sessions", "processor", _silent_calls(_SESSION, SESSIONS)),
    Attack("silent attaches", "engine", _silent_calls(ENGINE + "Attach", SESSIONS), lingers=True),
    Attack("superseding attaches", "engine", _superseding_attaches, rounds=5, lingers=True),
    Attack("storms", "engine", _storms),
    *(
        Attack("half-open calls", service, _silent_calls(method, HALF_OPEN), lingers=True)
        for service, method in _METHODS.items()
    ),
    *_on_all("open and cancel", _open_and_cancel),
    *_on_all("watches", _watches),
    *_on_all("unread reflection", _reflections, lingers=True),
    *_on_all("slow handshakes", _slow_handshakes, lingers=True),
    *_on_all("slow headers", _slow_headers),
    *_on_all("garbage", _garbage),
    *_on_all("connections", _connections, rounds=1),
)
