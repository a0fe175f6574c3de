"""The process that sends damaged messages, apart from the one that measures.

A line of JSON on its standard input says what to send, one on its standard output what came of it.
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
    """What to send."""

    addresses: dict[str, str]
    service: str
    inputs: int
    seed: int
    streams: int
    """Calls at a time."""
    rate: float | None
    """Most messages a second; None: as many as go."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of it."""

    sent: int
    codes: dict[str, int]
    """How calls ended."""
    broken: list[str]

    def __add__(self, other: Self) -> Came:
        codes = Counter(self.codes) + Counter(other.codes)
        return Came(self.sent + other.sent, dict(codes), self.broken + other.broken)


@asynccontextmanager
async def sender(niceness: int) -> AsyncIterator[Callable[[Order], Awaitable[Came]]]:
    """A process that carries out one order after the other; each raises ``RuntimeError`` if it ended instead."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fuzz.sender", str(niceness)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, of = process.stdin, process.stdout

    async def send(order: Order) -> Came:
        to.write(json.dumps(asdict(order)).encode() + b"\n")
        await to.drain()
        if not (line := await of.readline()):
            raise RuntimeError(f"the process that sends ended with {await process.wait()}")
        return Came(**json.loads(line))

    try:
        if await of.readline() != _READY.encode():
            raise RuntimeError("the process that sends did not start")
        yield send
    finally:
        to.close()
        await process.wait()


async def _all(order: Order) -> Came:
    shares = [_one(order, order.seed * order.streams + number) for number in range(order.streams)]
    return sum(await asyncio.gather(*shares), Came(0, {}, []))


async def _one(order: Order, seed: int) -> Came:
    async with fuzzing(order.addresses, seed) as fuzzer:
        rate = None if order.rate is None else order.rate / order.streams
        await fuzzer.run(order.service, order.inputs // order.streams, rate)
    return Came(fuzzer.sent, fuzzer.codes, fuzzer.broken)


def main() -> None:
    """Carry out what standard input asks for, until it ends."""
    os.nice(int(sys.argv[1]))
    sys.stdout.write(_READY)
    sys.stdout.flush()
    for line in sys.stdin:
        came = asyncio.run(_all(Order(**json.loads(line))))
        print(json.dumps(asdict(came)), flush=True)


if __name__ == "__main__":
    main()
