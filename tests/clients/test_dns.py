"""A name with several addresses, asked of a name server on this machine that speaks real DNS."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
import ringline
from ringline.inference.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server

from tests.clients.scripted_server import ScriptedInference

_A = 1
"""The type of record that is an IPv4 address."""


class NameServer(asyncio.DatagramProtocol):
    """Every name has ``addresses``, and nothing else."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    @property
    def port(self) -> int:
        return int(self._transport.get_extra_info("sockname")[1])

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        question = data[12 : data.index(b"\0", 12) + 5]
        (kind,) = struct.unpack(">H", question[-4:-2])
        records = [
            b"\xc0\x0c" + struct.pack(">HHIH", _A, 1, 0, 4) + socket.inet_aton(address)
            for address in (self.addresses if kind == _A else ())
        ]
        header = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0)
        self._transport.sendto(header + question + b"".join(records), peer)


@asynccontextmanager
async def processor(host: str, port: int = 0) -> AsyncIterator[tuple[ScriptedInference, int]]:
    service, server = ScriptedInference(), grpc.aio.server()
    add_InferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    try:
        yield service, port
    finally:
        await server.stop(None)


@pytest.fixture
async def names() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield server
    transport.close()


async def test_the_addresses_of_a_name_stand_in_for_each_other_and_new_ones_are_found(names: NameServer) -> None:
    names.addresses = ("127.0.0.1", "127.0.0.2")
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        service, port = await first.enter_async_context(processor("127.0.0.1"))
        other, _ = await second.enter_async_context(processor("127.0.0.2", port))
        client = ringline.AsyncClient(f"dns://127.0.0.1:{names.port}/processors.test:{port}")
        assert (await client.generate("Hi")).text == "Hello, world"
        used, spare, spare_service = (first, second, other) if service.requests else (second, first, service)
        assert not spare_service.requests
        await used.aclose()
        assert (await client.generate("Hi")).text == "Hello, world"
        assert spare_service.requests
        await spare.aclose()
        names.addresses = ("127.0.0.3",)
        async with client, processor("127.0.0.3", port) as (third, _):
            assert (await client.generate("Hi")).text == "Hello, world"
            assert third.requests
