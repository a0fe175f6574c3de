"""Streams that a secured ring is in the middle of when something of it is replaced, and that go on to their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ringline
from ringline.engine.v1 import engine_pb2

from tests.services.secured_ring import SECONDS, SecuredRing, engine_load

STREAMS = 4
TOKENS = 800
"""Seconds of work for the engine, where replacing a file and connecting anew takes less than one."""
ATTEMPTS = 20
"""The engine may yet be done first, when it goes on while this process or another service stands still."""
_ASKED: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}


async def check_streams_uninterrupted(
    secured: SecuredRing, client: ringline.AsyncClient, replace: Callable[[], Awaitable[None]]
) -> None:
    """Streams that begin before ``replace`` and are computed after it end as if nothing had been.

    What is replaced is done again, with new streams, when they had ended before it was done.
    """
    links = link_losses(secured)
    expected = await client.generate("Once upon a time", **_ASKED)
    for _ in range(ATTEMPTS):
        await _wait_idle(secured)
        streams = [client.stream("Once upon a time", **_ASKED) for _ in range(STREAMS)]
        for stream in streams:
            await anext(aiter(stream))
        await replace()
        load = await _load(secured)
        answers = [await stream.result() for stream in streams]
        assert [(answer.token_ids, answer.text, answer.resumed) for answer in answers] == [
            (expected.token_ids, expected.text, 0)
        ] * STREAMS
        computed = (await _load(secured)).generated_tokens - load.generated_tokens
        if load.running_choices == STREAMS and computed >= STREAMS:
            assert link_losses(secured) == links, "every link between services stood"
            return
    raise AssertionError(f"{ATTEMPTS} times the streams had ended before it was done")


def link_losses(secured: SecuredRing) -> dict[str, int]:
    """How many links each service has lost so far: to engines, and to detokenizers."""
    dialling = {"detokenizer": secured.detokenizer, "processor": secured.processor, "guarded": secured.guarded}
    return {
        name: sum(line["event"] == "link ended" for line in service.records()) for name, service in dialling.items()
    }


async def _load(secured: SecuredRing) -> engine_pb2.Load:
    return await asyncio.to_thread(engine_load, secured, secured.certificates.credentials("operator"))


async def _wait_idle(secured: SecuredRing) -> None:
    """Until the engine computes nothing, so that what it computes then is known."""
    async with asyncio.timeout(SECONDS):
        while (await _load(secured)).running_choices:  # noqa: ASYNC110 - another process says so only when asked
            await asyncio.sleep(0.05)
