"""Peers by address and by name: those that come are linked, those that went are forgotten, and nothing is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.common.links import discovery
from services.common.links.channels import Endpoint
from services.common.links.discovery import Discovery, PeerDedup, resolve
from services.common.links.engine_link import EngineLink
from services.ring.identity import PeerId
from tests.ports import HeldPort
from tests.services.common.links.fake_engine import FakeEngine, Owner, serving

ME = PeerId("processor-0", 1)
INTERVAL = 0.1


class Names:
    """What DNS says; an error while there is one."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = set(hosts)
        self.error: OSError | None = None
        self.asked = asyncio.Condition()

    async def __call__(self, host: str, port: int) -> frozenset[str]:
        assert host == "engine"
        async with self.asked:
            self.asked.notify_all()
        if self.error is not None:
            raise self.error
        return frozenset(f"{each}:{port}" for each in self.hosts)

    async def asked_again(self) -> None:
        """Until what was set before has been answered and acted upon."""
        async with self.asked:
            await self.asked.wait()
            await self.asked.wait()


@asynccontextmanager
async def following(names: Names, owner: Owner, *addresses: str) -> AsyncIterator[Discovery]:
    dedup = PeerDedup()
    found = Discovery(
        addresses,
        lambda address, host: EngineLink(Endpoint(address), ME, owner, dedup, stall_timeout=5.0),
        interval=INTERVAL,
        resolve=names,
    )
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_engines_of_a_name_come_and_go_while_the_process_runs() -> None:
    names, owner = Names("127.0.0.1"), Owner()
    async with (
        serving(FakeEngine("a"), "127.0.0.1") as (port, _),
        serving(FakeEngine("b"), "127.0.0.2", port=port) as (_, second),
        following(names, owner, f"engine:{port}") as found,
    ):
        await owner.until("a")
        names.hosts.add("127.0.0.2")
        await owner.until("a", "b")
        # Its address is withdrawn first, as when a container is being stopped: what runs on the link goes on.
        names.hosts.remove("127.0.0.2")
        await names.asked_again()
        await owner.until("a", "b")
        await second.stop(0)
        await owner.until("a")
        await names.asked_again()
        assert found.addresses == {f"127.0.0.1:{port}"}, "nobody dials where nobody is"


async def test_what_is_known_stays_while_dns_cannot_answer() -> None:
    names, owner = Names("127.0.0.1"), Owner()
    names.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    held = HeldPort()
    with capture_logs() as logs:
        async with (
            serving(FakeEngine("a"), "127.0.0.1", port=held.number) as (port, server),
            following(names, owner, f"engine:{port}"),
        ):
            await names.asked_again()
            names.error = None
            await owner.until("a")
            names.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            await server.stop(0)
            await owner.until()
            await names.asked_again()
            async with serving(FakeEngine("a"), "127.0.0.1", port=port):
                await owner.until("a")
    held.release()
    told = [entry["reason"] for entry in logs if entry["event"] == "name not resolved"]
    assert told == ["Temporary failure in name resolution"] * 2, "once each time that it begins"


class Idle:
    """A link whose state the test sets."""

    running: ClassVar[dict[str, Idle]] = {}

    def __init__(self, address: str, host: str | None) -> None:
        assert host == (None if address.startswith("10.0.1") else "engine"), "whose certificate is expected there"
        self.address, self.up = address, False

    async def run(self) -> None:
        Idle.running[self.address] = self
        try:
            await asyncio.Event().wait()
        finally:
            del Idle.running[self.address]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(1, 12)), st.sets(st.integers(1, 12))), max_size=6))
def test_whatever_dns_says_only_what_it_names_or_lives_is_dialled(rounds: list[tuple[set[int], set[int]]]) -> None:
    """Of each round: the addresses that DNS names, and those whose links live afterwards."""

    async def main() -> None:
        answers: asyncio.Queue[frozenset[str]] = asyncio.Queue()

        async def resolve(host: str, port: int) -> frozenset[str]:
            return await answers.get()

        found = Discovery(["engine:1", "10.0.1.1:1"], Idle, interval=0.0, resolve=resolve)
        task = asyncio.create_task(found.run())
        kept: set[str] = set()
        for named, up in rounds:
            wanted = {f"10.0.0.{each}:1" for each in named} | {"10.0.1.1:1"}
            answers.put_nowait(frozenset(wanted - {"10.0.1.1:1"}))
            for _ in range(10):
                await asyncio.sleep(0)
            dialled = found.addresses - {"engine:1"}
            assert dialled >= kept, "a link that lives is kept"
            assert dialled <= wanted | kept
            assert len(dialled) == min(len(wanted | kept), discovery.MAX_LINKS)
            assert Idle.running.keys() == dialled, "tasks of what was forgotten end"
            kept = {address for address in dialled if address.startswith("10.0.0") and int(address[7:-2]) in up}
            for address in dialled:
                Idle.running[address].up = address in kept
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not Idle.running

    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(discovery, "MAX_LINKS", 8)
        asyncio.run(main())


async def test_names_of_this_machine() -> None:
    assert "127.0.0.1:7" in await resolve("localhost", 7)
    assert await resolve("127.0.0.1", 7) == {"127.0.0.1:7"}


async def test_a_name_that_does_not_exist_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(error: int) -> frozenset[str]:
        def getaddrinfo(*arguments: object, **more: object) -> None:
            raise socket.gaierror(error, "no")

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return await resolve("engine", 1)

    assert await answer(socket.EAI_NONAME) == frozenset()
    assert await answer(socket.EAI_NODATA) == frozenset()
    with pytest.raises(socket.gaierror):
        await answer(socket.EAI_AGAIN)
