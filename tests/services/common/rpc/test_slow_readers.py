"""When the reader is given up, the write under way ends, whatever else happens in that turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from services.common.rpc.slow_readers import OutputStream
from services.ring.outbox import Outboxes


@pytest.mark.parametrize("expired", [False, True], ids=["in time", "as its time has passed"])
async def test_a_write_to_a_reader_that_is_given_up_ends(expired: bool) -> None:
    stream = OutputStream(Outboxes(), "tenant")
    writing = asyncio.create_task(_write(stream))
    await asyncio.sleep(0)
    assert stream._write is not None
    if expired:
        stream._write._on_timeout()  # as the loop does, before the task that writes goes on
    stream._give_up()
    with pytest.raises(TimeoutError):
        await writing
    assert stream._write is None


async def _write(stream: OutputStream) -> None:
    await stream.write(_never_sent, "message", 600.0)


async def _never_sent(message: str) -> None:
    await asyncio.Event().wait()
