"""When the reader is given up, the write under way ends, whatever else happens in that turn of the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.common.rpc.output_stream import OutputStream
from services.ring.outbox import Outboxes


@pytest.mark.parametrize("expired", [False, True], ids=["in time", "as its time has passed"])
async def test_a_write_to_a_reader_that_is_given_up_ends(expired: bool) -> None:
    async def never_sent(message: str) -> None:
        await asyncio.Event().wait()

    stream = OutputStream(Outboxes(max_bytes=1000), "tenant")
    too_much = ("1-1", 0, 0, [7], "x" * 1000)
    writing = asyncio.create_task(stream.write(never_sent, "message", 0.01 if expired else 600.0))
    await asyncio.sleep(0)
    if expired:
        asyncio.get_running_loop().call_later(0.01, stream.outbox.delta, *too_much)
        time.sleep(0.02)  # noqa: ASYNC251 - both come in one turn of the event loop, before the task that writes goes on
    else:
        stream.outbox.delta(*too_much)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(writing), 30)
    assert writing.done()
    with pytest.raises(TimeoutError):
        await stream.write(never_sent, "another", 600.0)
