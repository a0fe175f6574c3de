"""An engine that honest requests fill: how long others wait beside it is the measure for attacks that fill it, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.types.v1 import link_pb2

from services.peers.channels import open_channel
from services.process.run import new_incarnation
from services.ring.identity import MAX_VERSION, MIN_VERSION
from tests.abuse.memory_attacks import ordinary

_BEGUN = 30.0
"""Seconds for the first outputs to come."""


@asynccontextmanager
async def full_engine(address: str, requests: int, tenants: int) -> AsyncIterator[None]:
    """While inside, an engine has so many requests of so many tenants; each that ends is followed by another.

    Raises an ``ExceptionGroup`` if the engine refuses one, ends one with an error or ends the stream.
    """
    async with open_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        crowd = _Crowd(stub.Attach())
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(crowd.ask([f"crowd-{number % tenants}" for number in range(requests)]))
            async with asyncio.timeout(_BEGUN):
                await crowd.begun.wait()
            yield
            asking.cancel()


class _Crowd:
    """One peer of the engine, for many tenants."""

    def __init__(self, call: Any) -> None:
        self.begun = asyncio.Event()
        self._call = call
        self._incarnation = new_incarnation()
        self._numbers = count()
        self._tenants: dict[str, str] = {}
        """Of the requests under way."""

    async def ask(self, tenants: list[str]) -> None:
        """A request for each; whenever one has ended, its tenant's next."""
        hello = link_pb2.Hello(
            name="crowd", incarnation=self._incarnation, min_version=MIN_VERSION, max_version=MAX_VERSION
        )
        await self._call.write(engine_pb2.AttachRequest(hello=hello, commands=map(self._submit, tenants)))
        async for response in self._call:
            for refused in response.rejections:
                raise RuntimeError(f"the engine refused an honest request: {refused.status.message}")
            if response.outputs.request_ids:
                self.begun.set()
            if response.outputs.finished:
                await self._call.write(engine_pb2.AttachRequest(commands=self._replace(response.outputs.finished)))
        raise RuntimeError("the engine ended the stream")

    def _submit(self, tenant: str) -> engine_pb2.Command:
        wanted = ordinary(f"{self._incarnation}-{next(self._numbers)}", tenant, [7] * 8)
        self._tenants[wanted.request_id] = tenant
        return engine_pb2.Command(submit=wanted)

    def _replace(self, finished: Iterable[engine_pb2.Finished]) -> Iterator[engine_pb2.Command]:
        for one in finished:
            if one.HasField("error"):
                raise RuntimeError(f"the engine ended an honest request: {one.error.message}")
            yield engine_pb2.Command(done=engine_pb2.Done(request_id=one.request_id, epoch=1))
            yield self._submit(self._tenants.pop(one.request_id))
