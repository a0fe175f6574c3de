"""Large messages take messages, the smaller ones first, and leave time between them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from services.engine.large_messages import LargeMessages

MIB = 1 << 20


async def handle(messages: LargeMessages, num_bytes: int, work: Callable[[], object]) -> object:
    async with messages.turn(num_bytes):
        return await messages.run(work)


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_one_at_a_time_even_when_their_senders_have_gone() -> None:
    messages, begun, go_on = LargeMessages(), threading.Event(), threading.Event()
    order: list[str] = []
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    def first() -> None:
        begun.set()
        go_on.wait(60)
        order.append("first")
        raise ValueError("of who has gone")

    asked = [asyncio.create_task(handle(messages, MIB, work)) for work in (first, lambda: order.append("withdrawn"))]
    async with asyncio.timeout(30):
        await asyncio.to_thread(begun.wait)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        last = asyncio.create_task(handle(messages, MIB, lambda: order.append("last")))
        await settle()
        await asyncio.sleep(0.05)
        assert not order, "the turn was given away while a thread was at work"
        go_on.set()
        await last
    gc.collect()
    assert order == ["first", "last"]
    assert not logged


async def test_small_ones_go_first_but_not_before_those_that_have_waited_long(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, order, now = LargeMessages(), list[int](), time.monotonic()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def come(num_bytes: int) -> None:
        tasks.append(asyncio.create_task(handle(messages, num_bytes, lambda: order.append(num_bytes))))
        await settle()

    tasks: list[asyncio.Task[object]] = []
    async with messages.turn(0):
        await come(MIB)
        await come(MIB + 1)
        await come(1000)
        now += 61.0
        await come(1001)
        monkeypatch.undo()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert order == [1000, MIB, MIB + 1, 1001]


async def test_after_one_the_next_waits_as_long_as_its_work_took(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter((0.0, 0.1, 0.1, 0.1))
    monkeypatch.setattr("services.engine.large_messages.time", SimpleNamespace(thread_time=lambda: next(used)))
    messages = LargeMessages()
    first, second = [await handle(messages, MIB, time.monotonic) for _ in range(2)]
    assert isinstance(first, float)
    assert isinstance(second, float)
    assert second - first >= 0.09


@pytest.mark.parametrize("told", [False, True], ids=["that waits", "whose turn has come"])
async def test_one_that_is_cancelled_leaves_the_turn_to_the_next(told: bool) -> None:
    messages = LargeMessages()
    async with messages.turn(0):
        asked, other = (asyncio.create_task(handle(messages, size, lambda: "done")) for size in (1, 2))
        await settle()
        if not told:
            asked.cancel()
    if told:
        when_told(asked.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asked
    async with asyncio.timeout(30):
        assert await other == "done"
        assert await handle(messages, 1, lambda: "again") == "again"


def when_told(function: Callable[[], object]) -> None:
    """Call it once the turn that was just given back is the next one's, before that one goes on."""
    asyncio.get_running_loop().call_later(0.0, function)


async def test_those_that_are_cancelled_together_leave_the_turn_to_the_next() -> None:
    """The first of them has just been told that its turn has come."""
    messages = LargeMessages()
    async with messages.turn(0):
        asked = [asyncio.create_task(handle(messages, size, lambda: "done")) for size in (1, 2, 3)]
        await settle()
    for task in asked[:2]:
        when_told(task.cancel)
    async with asyncio.timeout(30):
        ended = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError, asyncio.CancelledError, str]


def cancelled_futures() -> int:
    """Those of this process, whoever made them, that something still refers to."""
    gc.collect()
    return sum(isinstance(one, asyncio.Future) and one.cancelled() for one in gc.get_objects())


async def test_those_that_are_cancelled_do_not_stay() -> None:
    messages, before = LargeMessages(), cancelled_futures()
    async with messages.turn(0):
        for _ in range(100):
            asked = asyncio.create_task(handle(messages, MIB, lambda: None))
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        assert cancelled_futures() - before <= 5
