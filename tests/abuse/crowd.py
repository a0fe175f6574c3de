"""Fills an engine with honest requests: the baseline for attacks that fill it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.common.links.channels import Endpoint
from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId

_START_TIMEOUT = 30.0
"""Seconds until the first outputs."""


@asynccontextmanager
async def full_engine(
    address: str, requests: int, tenants: int, make: Callable[[str, str], engine_pb2.Submit]
) -> AsyncIterator[None]:
    """Keep ``requests`` requests of ``tenants`` tenants in flight while the body runs.

    ``make``: makes one with an id and of a tenant.

    Raises an ``ExceptionGroup`` if the engine refuses one, ends one with an error or ends the stream.
    """
    async with Endpoint(address).open() as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        crowd = _Crowd(stub.Attach(), make)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(crowd.ask([f"crowd-{number % tenants}" for number in range(requests)]))
            async with asyncio.timeout(_START_TIMEOUT):
                await crowd.started.wait()
            yield
            asking.cancel()


class _Crowd:
    """One peer of the engine that submits for many tenants."""

    def __init__(self, call: Any, make: Callable[[str, str], engine_pb2.Submit]) -> None:
        self.started = asyncio.Event()
        self._call = call
        self._make = make
        self._incarnation = new_incarnation()
        self._numbers = count()
        self._tenants: dict[str, str] = {}
        """By id of a request in flight."""
        self._choices: Counter[str] = Counter()
        """That have not ended, by id of their request."""

    async def ask(self, tenants: list[str]) -> None:
        """Submit a request for each tenant, and another whenever one has ended."""
        hello = hello_message(PeerId("crowd", self._incarnation))
        await self._call.write(engine_pb2.AttachRequest(hello=hello, commands=map(self._submit, tenants)))
        async for response in self._call:
            for refused in response.rejections:
                raise RuntimeError(f"the engine refused an honest request: {refused.status.message}")
            if response.outputs.request_ids or response.outputs.finished:
                self.started.set()
            if response.outputs.finished:
                await self._call.write(engine_pb2.AttachRequest(commands=self._replace(response.outputs.finished)))
        raise RuntimeError("the engine ended the stream")

    def _submit(self, tenant: str) -> engine_pb2.Command:
        wanted = self._make(f"{self._incarnation}-{next(self._numbers)}", tenant)
        self._tenants[wanted.request_id] = tenant
        self._choices[wanted.request_id] = max(1, len(wanted.pooling.inputs))
        return engine_pb2.Command(submit=wanted)

    def _replace(self, finished: Iterable[engine_pb2.Finished]) -> Iterator[engine_pb2.Command]:
        for one in finished:
            if one.HasField("error"):
                raise RuntimeError(f"the engine ended an honest request: {one.error.message}")
            self._choices[one.request_id] -= 1
            if self._choices[one.request_id]:
                continue
            yield engine_pb2.Command(done=engine_pb2.Done(request_id=one.request_id, epoch=1))
            yield self._submit(self._tenants.pop(one.request_id))
