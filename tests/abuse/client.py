"""A hostile client: its connections, and how often it attacks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from services.ring.identity import PeerId
from tests.abuse.wire import DEFAULT_WINDOW, Connection, message

INFERENCE, ENGINE, DETOKENIZER = (
    "/ringline.inference.v1.InferenceService/",
    "/ringline.engine.v1.EngineService/",
    "/ringline.detokenizer.v1.DetokenizerService/",
)
_PAUSE = 0.02
"""Seconds between two rounds, so that all clients of this process get their turn."""
_PAUSE_REFUSED = 0.2
"""Seconds after a connection that was refused or lost."""


class HostileClient:
    """Attacks one service from an IP address of its own."""

    def __init__(
        self, number: int, addresses: Mapping[str, str], service: str, seconds: float, seed: int, tokenizer: str
    ) -> None:
        """``service``: the one that is attacked; attacks may need others, too.

        ``tokenizer``: the digest that output contexts must have.
        """
        self.number = number
        self.tokenizer = tokenizer
        self.service = service
        self.rng = random.Random((seed << 16) + number)
        self.rounds = 0
        self.sent = 0
        self.lost_connections = 0
        """Refused or closed by the server."""
        self._addresses = addresses
        self._until = time.monotonic() + seconds
        self._incarnations = 0
        self._kept = AsyncExitStack()

    @property
    def source(self) -> str:
        """Its IP address: all of 127.0.0.0/8 is this machine."""
        return f"127.{1 + self.number // 200}.0.{1 + self.number % 200}"

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._until

    def new_incarnation(self) -> PeerId:
        """Newer than all before."""
        self._incarnations += 1
        return PeerId(f"hostile-{self.number}", (int(time.time() * 1000) << 16) + self._incarnations)

    @asynccontextmanager
    async def connection(self, service: str | None = None) -> AsyncIterator[Connection]:
        """Connect to ``service`` and send the HTTP/2 preface."""
        async with Connection(self._address(service), source=self._source(service)) as made:
            await made.send_preface()
            yield made
            self.sent += made.sent

    async def lasting_connection(
        self, *, preface: bool = True, window: int = DEFAULT_WINDOW, reads: bool = True
    ) -> Connection:
        """Connect; the connection stays open until ``disconnect``."""
        made = Connection(self._address(), source=self._source(), window=window, reads=reads)
        await self._kept.enter_async_context(made)
        if preface:
            await made.send_preface()
        return made

    async def silent_connection(self) -> Connection:
        """A connection on which nothing has been sent."""
        made = Connection(self._address(), source=self._source())
        await made.dial()
        return made

    async def ask(self, method: str, data: bytes, service: str | None = None) -> None:
        """Make a call with one message, and wait for its end."""
        async with self.connection(service) as made:
            stream = await made.call(method)
            await made.send(stream, message(data), last=True)
            await made.wait_streams_ended(1)

    async def run(self, attack: Callable[[HostileClient], Awaitable[None]], rounds: int) -> None:
        """Attack until the time is over: once at least, ``rounds`` times at most."""
        while (self.rounds == 0 or not self.over) and self.rounds < rounds:
            self.rounds += 1
            pause = _PAUSE
            try:
                async with asyncio.timeout(self._until - time.monotonic()):
                    await attack(self)
            except TimeoutError:
                pass
            except OSError:
                self.lost_connections += 1
                pause = _PAUSE_REFUSED
            await asyncio.sleep(pause)

    async def disconnect(self) -> None:
        """Close lasting connections."""
        with contextlib.suppress(OSError):
            await self._kept.aclose()

    def _address(self, service: str | None = None) -> str:
        return self._addresses[service or self.service]

    def _source(self, service: str | None = None) -> str | None:
        return None if self._address(service).startswith("unix:") else self.source


Act = Callable[[HostileClient], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack of many clients on one service."""

    name: str
    service: str
    act: Act
    """One round of one client."""
    rounds: int = 1_000_000
    """Of one client, at most."""
    lingers: bool = False
    """Whether clients stay connected when it is over; the service must free resources nevertheless."""
    fills: bool = False
    """Whether it fills the engine's batch, so that others wait as they would behind honest requests."""
