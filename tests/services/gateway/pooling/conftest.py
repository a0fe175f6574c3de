"""A gateway in front of a processor that makes vectors, scores and labels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.services.gateway.http_harness import Reply, Running, running
from tests.services.gateway.pooling.fake_ring import PoolingInference


@dataclass(frozen=True)
class Doors:
    """The gateway, and the processor behind it."""

    gateway: Running
    ring: PoolingInference

    async def post(self, path: str, **body: Any) -> Reply:
        """A request's reply."""
        return await self.gateway.ask("POST", path, body)

    async def ask(self, path: str, **body: Any) -> Any:
        """A request's answer, as an object."""
        reply = await self.post(path, **body)
        assert reply.status == 200, reply.body
        assert reply.headers["content-type"] == "application/json"
        return msgspec.json.decode(reply.body)

    async def refused(self, path: str, **body: Any) -> tuple[int, str | None, str]:
        """Status, field and text of a refusal."""
        reply = await self.post(path, **body)
        return reply.status, reply.error["param"], reply.error["message"]


@pytest.fixture
async def doors() -> AsyncIterator[Doors]:
    ring = PoolingInference()
    async with running(ring) as made:
        yield Doors(made, ring)
