"""What each engine itself says of its adapters, asked all the time, past all wires: it tells what requests may get."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.common.links.channels import Endpoint
from tests.processes import Process

PAUSE = 0.25
"""Seconds between two questions."""
TIMEOUT = 2.0
KEPT = 300.0
"""Seconds; longer than any request takes."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One answer of an engine, or none."""

    asked: float
    """Monotonic time."""
    answered: float
    known: Mapping[tuple[str, str], bool] | None
    """By name and digest, whether the name stands for the adapter; None: it does not answer."""

    def stands_for(self, name: str) -> str | None:
        """A digest."""
        return next((digest for (each, digest), now in (self.known or {}).items() if now and each == name), None)


class Sightings:
    """Of all engines."""

    def __init__(self, engines: Iterable[Process]) -> None:
        self._engines = list(engines)
        self._seen: dict[str, deque[Sighting]] = defaultdict(deque)
        self._next = asyncio.Event()
        """Set, and replaced, with the next sighting of any engine."""

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Ask all engines meanwhile."""
        tasks = [asyncio.create_task(self._watch(engine)) for engine in self._engines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, end: float) -> None:
        """Return when every engine has been asked after ``end``, and has answered or not."""
        while not all(seen and seen[-1].asked >= end for seen in map(self._seen.__getitem__, self._names())):
            await self._next.wait()

    def is_known(self, name: str, digest: str, since: float, until: float) -> bool:
        """Whether some engine knew an adapter the whole time."""
        key = (name, digest)
        return any(
            all(each.known is not None and key in each.known for each in self._between(engine, since, until))
            for engine in self._names()
        )

    def stands(self, name: str, since: float, until: float) -> bool:
        """Whether a name stood for an adapter, if not always for the same, at some engine the whole time."""
        return any(
            all(each.stands_for(name) is not None for each in self._between(engine, since, until))
            for engine in self._names()
        )

    def digests(self, name: str, since: float, until: float) -> set[str]:
        """What a name stood for at any engine, some time between; also if that was hung, and stood for it before."""
        found = set()
        for engine in self._names():
            answers = [each for each in self._seen[engine] if each.known is not None and each.asked <= until]
            last = max((at for at, each in enumerate(answers) if each.answered < since), default=0)
            found |= {each.stands_for(name) for each in answers[last:]}
        return {digest for digest in found if digest is not None}

    def now(self) -> dict[str, dict[str, str]]:
        """What each name stands for, by engine, as it last said it."""
        return {
            engine: {name: digest for (name, digest), is_current in (seen[-1].known or {}).items() if is_current}
            for engine, seen in self._seen.items()
        }

    def _names(self) -> list[str]:
        return [engine.name for engine in self._engines]

    def _between(self, engine: str, since: float, until: float) -> list[Sighting]:
        """With the last one before, and the first one behind. One that tells nothing, if there are no such."""
        seen = list(self._seen[engine])
        first = max((at for at, each in enumerate(seen) if each.answered < since), default=None)
        last = next((at for at, each in enumerate(seen) if each.asked > until), None)
        unknown = Sighting(since, until, None)
        return [unknown] if first is None or last is None else seen[first : last + 1]

    async def _watch(self, engine: Process) -> None:
        seen = self._seen[engine.name]
        while True:
            asked = time.monotonic()
            known = await _ask(engine)
            seen.append(Sighting(asked, time.monotonic(), known))
            while seen[0].answered < asked - KEPT:
                seen.popleft()
            self._next.set()
            self._next = asyncio.Event()
            await asyncio.sleep(PAUSE)


async def _ask(engine: Process) -> dict[tuple[str, str], bool] | None:
    async with Endpoint(engine.address).open() as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        try:
            answer = await stub.ListAdapters(engine_pb2.ListAdaptersRequest(), timeout=TIMEOUT)  # type: ignore[misc]
        except grpc.aio.AioRpcError:
            return None
    states = [each.state for each in answer.adapters]
    return {(state.adapter.name, state.adapter.digest): state.current for state in states}
