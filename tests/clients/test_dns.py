"""A name with several addresses, asked of a name server on this machine that speaks real DNS."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest
import ringline

from tests.clients.scripted_server import ScriptedInference, Served, serving
from tests.ports import HeldPort

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


@pytest.fixture
async def names() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield server
    transport.close()


async def test_the_addresses_of_a_name_stand_in_for_each_other_and_new_ones_are_found(names: NameServer) -> None:
    names.addresses = ("127.0.0.1", "127.0.0.2")
    port = HeldPort()

    def processor(host: str) -> AbstractAsyncContextManager[Served]:
        return serving(ScriptedInference(), f"{host}:{port.number}")

    async with AsyncExitStack() as first, AsyncExitStack() as second:
        one = await first.enter_async_context(processor("127.0.0.1"))
        other = await second.enter_async_context(processor("127.0.0.2"))
        client = ringline.AsyncClient(f"dns://127.0.0.1:{names.port}/processors.test:{port.number}")
        assert (await client.generate("Hi")).text == "Hello, world"
        used, spare, its = (first, second, other) if one.service.requests else (second, first, one)
        assert not its.service.requests
        await used.aclose()
        assert (await client.generate("Hi")).text == "Hello, world"
        assert its.service.requests
        await spare.aclose()
        names.addresses = ("127.0.0.3",)
        async with client, processor("127.0.0.3") as third:
            assert (await client.generate("Hi")).text == "Hello, world"
            assert third.service.requests
    port.release()
