"""The queue holds back requests that engines do not need yet, until they do, or until there are no engines."""

from __future__ import annotations

import asyncio

import pytest

from services.processor.admission.tokenization_queue import MIN_BYTES
from services.processor.request import Request
from services.ring.events import FinishReason
from tests.services.processor.queue_harness import QueueHarness


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.processor.admission.tokenization_queue.MIN_AHEAD", 1)


async def test_a_flood_is_tokenized_only_as_engines_need_it(core: QueueHarness) -> None:
    core.capacity = 2
    calls = [core.ask(f"flood {index}", 10, "flood") for index in range(4)]
    late = core.ask("late", 10, "other")
    core.free_threads()
    await until_live(core, calls[0], calls[1], late)
    assert (calls[2].admitted, calls[3].admitted) == (False, False)
    assert core.queue._bytes.held("flood") == 2 * MIN_BYTES
    core.admission.begun(calls[1])
    await until_live(core, calls[2])
    assert not calls[3].admitted


async def test_requests_held_back_are_released_when_no_engine_is_left(
    core: QueueHarness,
) -> None:
    core.capacity = 1
    calls = [core.ask(f"flood {index}", 10) for index in range(3)]
    core.free_threads()
    await until_live(core, calls[0])
    assert not calls[1].admitted
    core.capacity = None
    core.queue.release()
    await until_live(core, *calls)


async def test_a_request_that_ends_while_held_back_leaves_nothing_behind(core: QueueHarness) -> None:
    core.capacity = 1
    first, second, third = (core.ask(f"flood {index}", 10) for index in range(3))
    core.in_flight.end(second, FinishReason.CANCELLED)
    assert core.queue._bytes.held("") == 2 * MIN_BYTES
    core.free_threads()
    await until_live(core, first)
    core.in_flight.end(first, FinishReason.CANCELLED)
    await until_live(core, third)


async def until_live(core: QueueHarness, *calls: Request) -> None:
    async with asyncio.timeout(30):
        while any(not call.admitted for call in calls):  # noqa: ASYNC110 - several clients' events
            await asyncio.sleep(0.001)
