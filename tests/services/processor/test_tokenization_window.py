"""The desk keeps what engines need not have yet, and lets it go on when they do, or when there are none."""

from __future__ import annotations

import asyncio

import pytest

from services.processor.admission.tokenization_queue import LEAST_BYTES
from services.processor.client import ClientRequest
from services.ring.events import FinishReason
from tests.services.processor.tokenization_queues import Office


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.processor.admission.tokenization_queue.LEAST", 1)


async def test_no_more_is_tokenized_of_a_flood_than_engines_may_soon_need(office: Office) -> None:
    office.seats = 2
    calls = [office.ask(f"flood {index}", 10, "flood") for index in range(4)]
    late = office.ask("late", 10, "other")
    office._go.set()
    await until_live(office, calls[0], calls[1], late)
    assert (calls[2].live, calls[3].live) == (None, None)
    assert office.desk._bytes.held("flood") == 2 * LEAST_BYTES
    office.ring.backlog.leave(calls[1].ring_id)
    await until_live(office, calls[2])
    assert calls[3].live is None


async def test_what_is_kept_goes_on_when_no_engine_is_left_and_loses_its_patience_there(office: Office) -> None:
    office.seats = 1
    calls = [office.ask(f"flood {index}", 10) for index in range(3)]
    office._go.set()
    await until_live(office, calls[0])
    assert calls[1].live is None
    office.seats = None
    office.desk.release()
    await until_live(office, *calls)


async def test_what_ends_while_it_is_kept_leaves_nothing_behind(office: Office) -> None:
    office.seats = 1
    first, second, third = (office.ask(f"flood {index}", 10) for index in range(3))
    office.desk.drop(second)
    office.ring.end(second, FinishReason.CANCELLED)
    assert office.desk._bytes.held("") == 2 * LEAST_BYTES
    office._go.set()
    await until_live(office, first)
    office.ring.end(first, FinishReason.CANCELLED)
    await until_live(office, third)


async def until_live(office: Office, *calls: ClientRequest) -> None:
    async with asyncio.timeout(30):
        while any(call.live is None for call in calls):  # noqa: ASYNC110 - several clients' events
            await asyncio.sleep(0.001)
