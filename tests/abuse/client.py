"""One hostile client: where it may attack, for how long, and what it holds on to."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tests.abuse.wire import DEFAULT_WINDOW, Connection, message

INFERENCE, ENGINE, DETOKENIZER = (
    "/ringline.inference.v1.InferenceService/",
    "/ringline.engine.v1.EngineService/",
    "/ringline.detokenizer.v1.DetokenizerService/",
)
_PAUSE = 0.02
"""Seconds between two rounds, so that this process gets to all of its clients."""
_PAUSE_REFUSED = 0.2
"""Likewise after a connection that was refused or lost."""


class HostileClient:
    """Makes connections from an address of its own, and counts what it did."""

    def __init__(
        self, number: int, addresses: Mapping[str, str], service: str, seconds: float, seed: int, tokenizer: str
    ) -> None:
        """``service`` is the one that is attacked; others may be needed for it.

        ``tokenizer`` is the fingerprint that output contexts must have.
        """
        self.number = number
        self.tokenizer = tokenizer
        self.service = service
        self.rng = random.Random((seed << 16) + number)
        self.rounds = 0
        self.sent = 0
        self.lost = 0
        """Connections that the server refused or closed."""
        self._addresses = addresses
        self._until = time.monotonic() + seconds
        self._lives = 0
        self._kept = AsyncExitStack()

    @property
    def source(self) -> str:
        """The address that it comes from: all of 127.0.0.0/8 is this machine."""
        return f"127.{1 + self.number // 200}.0.{1 + self.number % 200}"

    @property
    def over(self) -> bool:
        """Whether it has to stop."""
        return time.monotonic() >= self._until

    def life(self) -> tuple[str, int]:
        """Name and incarnation of a peer: one name, in ever newer lives."""
        self._lives += 1
        return f"hostile-{self.number}", (int(time.time() * 1000) << 16) + self._lives

    @asynccontextmanager
    async def connection(
        self, service: str | None = None, *, window: int = DEFAULT_WINDOW, reads: bool = True
    ) -> AsyncIterator[Connection]:
        """A connection to a service that has been greeted; by default the one that is attacked."""
        async with Connection(self._address(service), source=self._source(service), window=window, reads=reads) as made:
            await made.greet()
            yield made
            self.sent += made.sent

    async def keep(self, *, greet: bool = True, window: int = DEFAULT_WINDOW, reads: bool = True) -> Connection:
        """A connection that stays until the client is told to let go."""
        made = Connection(self._address(), source=self._source(), window=window, reads=reads)
        await self._kept.enter_async_context(made)
        if greet:
            await made.greet()
        return made

    async def bare(self) -> Connection:
        """A connection of this round on which nothing has been said."""
        made = Connection(self._address(), source=self._source())
        await made.dial()
        return made

    async def ask(self, method: str, data: bytes, service: str | None = None) -> None:
        """One call with one message, to its end."""
        async with self.connection(service) as made:
            stream = await made.call(method)
            await made.send(stream, message(data), last=True)
            await made.has_ended(1)

    async def run(self, attack: Callable[[HostileClient], Awaitable[None]], rounds: int) -> None:
        """Attack again and again until the time is over, once at least, and at most so many times."""
        while (self.rounds == 0 or not self.over) and self.rounds < rounds:
            self.rounds += 1
            pause = _PAUSE
            try:
                async with asyncio.timeout(self._until - time.monotonic()):
                    await attack(self)
            except TimeoutError:
                pass
            except OSError:
                self.lost += 1
                pause = _PAUSE_REFUSED
            await asyncio.sleep(pause)

    async def let_go(self) -> None:
        """Close what was kept."""
        with contextlib.suppress(OSError):
            await self._kept.aclose()

    def _address(self, service: str | None = None) -> str:
        return self._addresses[service or self.service]

    def _source(self, service: str | None = None) -> str | None:
        return None if self._address(service).startswith("unix:") else self.source


Act = Callable[[HostileClient], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """What hostile clients do, to one service."""

    name: str
    service: str
    act: Act
    """One round of one client."""
    rounds: int = 1_000_000
    """Most of one client."""
    lingers: bool = False
    """Whether clients stay connected when it is over: the service must free what it may, all the same."""
    fills: bool = False
    """Whether it asks for as much as an engine computes at a time: others then wait as beside honest requests."""
