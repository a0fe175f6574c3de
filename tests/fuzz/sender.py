"""The process that sends mutated messages, separate from the one that measures.

It carries out an ``Order``, answered by a ``SendResult``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from services.common.config.addresses import host_and_port
from tests.fuzz.http_requests import HttpFuzzer
from tests.fuzz.targets import fuzzing
from tests.orders import carrying_out, serve


@dataclass(frozen=True, slots=True)
class Order:
    kind: str
    """Of the ring."""
    addresses: dict[str, str]
    service: str
    inputs: int
    seed: int
    streams: int
    """Calls in flight."""
    rate: float | None
    """Messages per second; None: as fast as possible."""


@dataclass(frozen=True, slots=True)
class SendResult:
    sent: int
    codes: dict[str, int]
    """Number of calls by status code, of HTTP for a gateway."""
    failures: list[str]

    def __add__(self, other: Self) -> SendResult:
        codes = Counter(self.codes) + Counter(other.codes)
        return SendResult(self.sent + other.sent, dict(codes), self.failures + other.failures)


@asynccontextmanager
async def sender(niceness: int) -> AsyncIterator[Callable[[Order], Awaitable[SendResult]]]:
    """Run the process; yields a function that carries out an order, and raises ``RuntimeError`` if the process died."""
    async with carrying_out("tests.fuzz.sender", niceness) as carry_out:

        async def send(order: Order) -> SendResult:
            return SendResult(**await carry_out(asdict(order)))

        yield send


async def _carry_out(given: dict[str, Any]) -> dict[str, Any]:
    order = Order(**given)
    if order.service == "gateway":
        http = HttpFuzzer(*host_and_port(order.addresses["gateway"]), order.kind)
        await http.run(order.inputs, order.seed, streams=order.streams, rate=order.rate)
        return asdict(SendResult(http.sent, dict(http.codes), http.failures))

    async def share(number: int) -> SendResult:
        async with fuzzing(order.addresses, order.seed * order.streams + number, order.kind) as fuzzer:
            rate = None if order.rate is None else order.rate / order.streams
            await fuzzer.run(order.service, order.inputs // order.streams, rate)
        return SendResult(fuzzer.sent, fuzzer.codes, fuzzer.failures)

    return asdict(sum(await asyncio.gather(*map(share, range(order.streams))), SendResult(0, {}, [])))


if __name__ == "__main__":
    asyncio.run(serve(_carry_out))
