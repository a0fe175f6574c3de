"""The process that sends mutated messages, separate from the one that measures.

Each line of standard input is an ``Order`` as JSON, answered by a line with a ``SendResult``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Self

from tests.fuzz.targets import fuzzing

_READY = "ready\n"
_LONGEST_LINE = 16 << 20


@dataclass(frozen=True, slots=True)
class Order:
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
    """Number of calls by status code."""
    failures: list[str]

    def __add__(self, other: Self) -> SendResult:
        codes = Counter(self.codes) + Counter(other.codes)
        return SendResult(self.sent + other.sent, dict(codes), self.failures + other.failures)


@asynccontextmanager
async def sender(niceness: int) -> AsyncIterator[Callable[[Order], Awaitable[SendResult]]]:
    """Run the process; yields a function that carries out an order, and raises ``RuntimeError`` if the process died."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fuzz.sender", str(niceness)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, of = process.stdin, process.stdout

    async def send(order: Order) -> SendResult:
        to.write(json.dumps(asdict(order)).encode() + b"\n")
        await to.drain()
        if not (line := await of.readline()):
            raise RuntimeError(f"the process that sends ended with {await process.wait()}")
        return SendResult(**json.loads(line))

    try:
        if await of.readline() != _READY.encode():
            raise RuntimeError("the process that sends did not start")
        yield send
    finally:
        to.close()
        await process.wait()


async def _all(order: Order) -> SendResult:
    shares = [_one(order, order.seed * order.streams + number) for number in range(order.streams)]
    return sum(await asyncio.gather(*shares), SendResult(0, {}, []))


async def _one(order: Order, seed: int) -> SendResult:
    async with fuzzing(order.addresses, seed) as fuzzer:
        rate = None if order.rate is None else order.rate / order.streams
        await fuzzer.run(order.service, order.inputs // order.streams, rate)
    return SendResult(fuzzer.sent, fuzzer.codes, fuzzer.failures)


def main() -> None:
    """Carry out orders until standard input ends."""
    os.nice(int(sys.argv[1]))
    sys.stdout.write(_READY)
    sys.stdout.flush()
    for line in sys.stdin:
        result = asyncio.run(_all(Order(**json.loads(line))))
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
