"""Tests of both clients in the same words: what the blocking one does runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import ringline

CLIENTS = pytest.mark.parametrize("kind", [ringline.Client, ringline.AsyncClient])


async def answer(client, call):
    """What a call of a client, or of its stream, returns or raises."""
    return await (asyncio.to_thread(call) if isinstance(client, ringline.Client) else call())


async def first(stream):
    """The first delta."""
    return await (asyncio.to_thread(next, stream) if isinstance(stream, ringline.Stream) else anext(stream))


async def events(stream) -> AsyncIterator[ringline.Event]:
    if isinstance(stream, ringline.Stream):
        found = stream.events()
        while (event := await asyncio.to_thread(next, found, None)) is not None:
            yield event
    else:
        async for event in stream.events():
            yield event


@asynccontextmanager
async def connected(kind, address=None, **options):
    client = kind(address, **options)
    try:
        yield client
    finally:
        await answer(client, client.close)
