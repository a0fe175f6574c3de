"""Links to engines: of several addresses that lead to one, one is used, and the next when that is lost."""

from __future__ import annotations

import asyncio

import pytest
from ringline.engine.v1 import engine_pb2
from structlog.testing import capture_logs

from services.common.links.channels import Endpoint
from services.common.links.discovery import PeerDedup
from services.common.links.engine_link import EngineLink
from services.ring.identity import PeerId
from tests.services.common.links.fake_engine import FakeEngine, Owner, serving
from tests.waiting import until

ME = PeerId("processor-0", 1)
Events = asyncio.Queue[tuple[str, str]]


def dial(owner: Owner, dedup: PeerDedup, address: str) -> tuple[EngineLink, asyncio.Task[None]]:
    link = EngineLink(Endpoint(address), ME, owner, dedup, stall_timeout=5.0)
    return link, asyncio.create_task(link.run())


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("told", "known"), [(None, None), ("rack-7", "rack-7"), ("rack 7", None)])
async def test_an_engine_tells_its_zone(told: str | None, known: str | None) -> None:
    owner = Owner()
    async with serving(FakeEngine(zone=told), "127.0.0.1") as (port, _):
        link, task = dial(owner, PeerDedup(), f"127.0.0.1:{port}")
        await owner.until("engine-0")
        assert link.zone == known
        await end(task)


async def test_two_addresses_of_one_engine_make_one_link() -> None:
    engine, events, dedup = FakeEngine(), Events(), PeerDedup()
    with capture_logs() as logs:
        async with serving(engine, "127.0.0.1", "127.0.0.2") as (port, _):
            owners = {f"127.0.0.{host}:{port}": Owner(events) for host in (1, 2)}
            tasks = {address: dial(owner, dedup, address)[1] for address, owner in owners.items()}
            async with asyncio.timeout(20):
                kind, first = await events.get()
            (second,) = owners.keys() - {first}
            asked = owners[second].asked
            await until(lambda: owners[second].asked >= asked + 4, 20)
            assert kind == "up"
            assert (engine.attached, events.empty(), owners[first].asked) == (1, True, 1)
            (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
            assert (warning["address"], warning["used"], warning["peer"]) == (second, first, "engine-0")
            # The one that is used is lost, and the other takes its place.
            await end(tasks.pop(first))
            async with asyncio.timeout(20):
                assert await events.get() == ("down", first)
                assert await events.get() == ("up", second)
            await end(*tasks.values())


async def test_whoever_welcomes_must_be_who_was_asked() -> None:
    """Behind one address may be several; what was learned of one says nothing of another."""
    owner = Owner(Events())
    with capture_logs() as logs:
        async with serving(FakeEngine(welcomes_as="engine-1"), "127.0.0.1") as (port, _):
            _, task = dial(owner, PeerDedup(), f"127.0.0.1:{port}")
            await until(lambda: owner.asked >= 3, 20)
            await end(task)
    assert owner.events.empty()
    assert any("answered: expected engine-0 with incarnation" in entry.get("reason", "") for entry in logs)


class ListeningEngine(FakeEngine):
    """Keeps the frames of commands that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[list[str]] = []
        """The ids of the requests that each frame is about."""

    async def Attach(self, request_iterator, context):
        async for response in super().Attach(request_iterator, context):
            yield response
            async for frame in request_iterator:
                self.frames.append([command.done.request_id for command in frame.commands])


async def test_commands_that_may_wait_go_behind_others_and_soon_even_without_any() -> None:
    engine, owner = ListeningEngine(), Owner()
    async with serving(engine, "127.0.0.1") as (port, _), asyncio.timeout(20):
        link, task = dial(owner, PeerDedup(), f"127.0.0.1:{port}")
        await owner.until("engine-0")

        def send(name: str, *, hurries: bool) -> None:
            link.send((engine_pb2.Command(done=engine_pb2.Done(request_id=name, epoch=1)),), hurries=hurries)

        send("a", hurries=False)
        send("b", hurries=True)
        await until(lambda: engine.frames == [["b", "a"]], 20)
        send("c", hurries=False)
        await until(lambda: engine.frames == [["b", "a"], ["c"]], 20)
        await end(task)


async def test_a_link_over_which_nothing_can_be_sent_is_dialled_again() -> None:
    events = Events()
    with capture_logs() as logs:
        async with serving(FakeEngine(), "127.0.0.1") as (port, _), asyncio.timeout(20):
            link, task = dial(Owner(events), PeerDedup(), f"127.0.0.1:{port}")
            assert (await events.get())[0] == "up"
            link._commands.append(b"\xff")  # no command
            link._wake.set()
            assert [(await events.get())[0] for _ in range(2)] == ["down", "up"]
            await end(task)
    assert any("cannot be written" in entry.get("reason", "") for entry in logs)
