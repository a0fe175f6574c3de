"""An engine that honest requests fill: what others wait beside it is the measure for attacks that fill it, too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.types.v1 import link_pb2

from services.ring.identity import MAX_VERSION, MIN_VERSION
from services.runtime.channels import open_channel
from services.runtime.incarnation import new_incarnation
from tests.abuse.memory_attacks import ordinary

LIVE = 3
"""Requests of each tenant at a time."""
_BEGUN = 30.0
"""Seconds for the first outputs to come."""


@asynccontextmanager
async def full_engine(address: str, tenants: int) -> AsyncIterator[None]:
    """While inside, so many tenants have ``LIVE`` requests each at an engine; each that ends is followed by another."""
    async with open_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        call = stub.Attach()
        hello = link_pb2.Hello(
            name="crowd", incarnation=new_incarnation(), min_version=MIN_VERSION, max_version=MAX_VERSION
        )
        await call.write(engine_pb2.AttachRequest(hello=hello))
        begun = asyncio.Event()
        asking = asyncio.create_task(_ask_on(call, hello.incarnation, tenants, begun))
        try:
            async with asyncio.timeout(_BEGUN):
                await begun.wait()
            yield
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            call.cancel()


async def _ask_on(call: Any, incarnation: int, tenants: int, begun: asyncio.Event) -> None:
    """Whenever a request of a tenant has ended, ask for the tenant's next."""
    numbers = count()
    tenant_of: dict[str, str] = {}

    async def write(requests: list[str], done: list[str]) -> None:
        commands = [engine_pb2.Command(done=engine_pb2.Done(request_id=one, epoch=1)) for one in done]
        for tenant in requests:
            wanted = ordinary(f"{incarnation}-{next(numbers)}", tenant, [7] * 8)
            tenant_of[wanted.request_id] = tenant
            commands.append(engine_pb2.Command(submit=wanted))
        await call.write(engine_pb2.AttachRequest(commands=commands))

    await write([f"crowd-{tenant}" for tenant in range(tenants)] * LIVE, [])
    async for response in call:
        if response.rejections:
            raise RuntimeError(f"the engine refused an honest request: {response.rejections[0].status.message}")
        if response.outputs.request_ids:
            begun.set()
        ended = [one.request_id for one in response.outputs.finished]
        if ended:
            await write([tenant_of.pop(one) for one in ended], ended)
