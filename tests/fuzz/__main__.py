"""Fuzzes the three services of a ring of its own, beside a well-behaved client: ``python -m tests.fuzz``.

Prints per service the status codes of calls, its memory before and after, and the client's latency with and without
fuzzing, measured in turns. Exit code 1 if a service failed, hung or died, the client got a wrong answer, or its p99
latency more than doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ringline

from services.cli.bench.measurement import LatencySummary
from tests.fuzz.sender import Order, SendResult, sender
from tests.processes import resident
from tests.ring import Ring, running_ring

RATES = {"processor": 300.0, "engine": 300.0, "detokenizer": 100.0}
"""Mutated messages per second. Those to a detokenizer cost the engine most."""
TURNS = 10
ALONE = 2.0
"""Seconds of each turn in which the client is measured without fuzzing."""
MAX_SLOWDOWN = 2.0
"""Limit of the client's p99 latency, as a multiple of that without fuzzing."""
_ASKED: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Send mutated messages to every service of a ring.")
    parser.add_argument("--inputs", type=int, default=100_000, help="mutated messages per service")
    parser.add_argument("--seed", type=int, default=0, help="what is sent follows from it")
    parser.add_argument("--streams", type=int, default=4, help="calls at a time")
    parser.add_argument("--rate", type=float, help=f"mutated messages a second, 0: no limit (default: {RATES})")
    parser.add_argument("--niceness", type=int, default=19, help="of who sends: with 19 services come first")
    parser.add_argument("--service", choices=RATES, action="append", help="only this; can be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_ring(Path(folder), "--vllm-engine-api") as ring:
        orders = {service: _orders(ring, service, arguments) for service in arguments.service or RATES}
        return asyncio.run(_fuzz(ring, orders, arguments.niceness))


def _orders(ring: Ring, service: str, given: argparse.Namespace) -> list[Order]:
    """One order for each turn."""
    rate = (RATES[service] if given.rate is None else given.rate) or None
    return [
        Order(ring.addresses, service, given.inputs // TURNS, given.seed * TURNS + turn, given.streams, rate)
        for turn in range(TURNS)
    ]


async def _fuzz(ring: Ring, orders: Mapping[str, Sequence[Order]], niceness: int) -> int:
    bad = 0
    async with ringline.AsyncClient(ring.address, patience=0) as client, sender(niceness) as send:
        expected = (await client.generate("Once upon a time", **_ASKED)).text
        for each in orders.values():
            bad += await _fuzz_one(ring, client, expected, send, each)
    return 1 if bad or ring.process.poll() is not None else 0


async def _fuzz_one(
    ring: Ring,
    client: ringline.AsyncClient,
    expected: str,
    send: Callable[[Order], Awaitable[SendResult]],
    orders: Sequence[Order],
) -> int:
    """Fuzz one service in turns with pauses; returns the number of problems."""
    service, result, busy = orders[0].service, SendResult(0, {}, []), 0.0
    alone: list[float] = []
    beside: list[float] = []
    before = _mib(ring, service)
    for order in orders:
        alone += (await _latencies(client, expected, asyncio.sleep(ALONE)))[0]
        start = time.monotonic()
        found, more = await _latencies(client, expected, send(order))
        busy += time.monotonic() - start
        beside += found
        result += more
    print(f"{service}: {result.sent} inputs in {busy:.0f} s, {before} to {_mib(ring, service)} MiB, {result.codes}")
    latencies: dict[str, Any] = {"alone": LatencySummary.of(alone), "beside": LatencySummary.of(beside)}
    for when, one in latencies.items():
        print(f"  {when:6} p50 {one.p50:6.1f} ms   p99 {one.p99:6.1f} ms")
    slower = latencies["beside"].p99 / latencies["alone"].p99
    print(f"  p99 beside it {slower:.2f} times as long", flush=True)
    for line in result.failures[:20]:
        print("  " + line)
    if slower > MAX_SLOWDOWN:
        print(f"  p99: expected at most {MAX_SLOWDOWN:g} times as long")
    return len(result.failures) + (slower > MAX_SLOWDOWN)


def _mib(ring: Ring, service: str) -> int:
    return resident(ring.pid(service)) >> 20


async def _latencies(client: ringline.AsyncClient, expected: str, work: Awaitable[Any]) -> tuple[list[float], Any]:
    """Seconds of requests sent one after the other while ``work`` runs; and what it returned."""
    task = asyncio.ensure_future(work)
    found = []
    while not task.done():
        start = time.perf_counter()
        answer = await client.generate("Once upon a time", **_ASKED)
        found.append(time.perf_counter() - start)
        if answer.text != expected:
            raise AssertionError(f"the client was told {answer.text!r}, not {expected!r}")
        await asyncio.sleep(0.01)
    return found, await task


if __name__ == "__main__":
    sys.exit(main())
