"""Fuzzes the services of rings of its own, beside a well-behaved client: ``python -m tests.fuzz``.

One ring generates tokens, one makes vectors, and one scores and labels. A gateway is sent damaged HTTP requests, a
tenth as many, and its client asks by HTTP. Prints per service the status codes of calls, its memory before and after,
and the client's latency with and without fuzzing, measured in turns. Exit code 1 if a service failed, hung or died, or
logged an error, the client got a wrong answer, or its p99 latency more than doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ringline

from services.cli.bench.measurement import LatencySummary
from services.common.config.addresses import host_and_port
from tests.chaos.logs import read_logs
from tests.fuzz.rings import KINDS, RingKind, running
from tests.fuzz.sender import Order, SendResult, sender
from tests.processes import resident
from tests.ring import Ring

RATES = {"processor": 300.0, "engine": 300.0, "detokenizer": 100.0, "gateway": 200.0}
"""Mutated messages per second. Those to a detokenizer cost the engine most."""
TURNS = 10
ALONE = 2.0
"""Seconds of each turn in which the client is measured without fuzzing."""
MAX_SLOWDOWN = 2.0
"""Limit of the client's p99 latency, as a multiple of that without fuzzing."""
HELD = ("ringline_http_open_requests", "ringline_http_connections")
"""What a gateway holds nothing of when nobody asks."""


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Send mutated messages to every service of a ring.")
    parser.add_argument("--inputs", type=int, default=100_000, help="mutated messages per service")
    parser.add_argument("--seed", type=int, default=0, help="what is sent follows from it")
    parser.add_argument("--streams", type=int, default=4, help="calls at a time")
    parser.add_argument("--rate", type=float, help=f"mutated messages a second, 0: no limit (default: {RATES})")
    parser.add_argument("--niceness", type=int, default=19, help="of who sends: with 19 services come first")
    parser.add_argument("--service", choices=RATES, action="append", help="only this; can be repeated")
    parser.add_argument("--ring", choices=KINDS, action="append", help="only this; can be repeated")
    arguments = parser.parse_args()
    bad = 0
    for kind in arguments.ring or KINDS:
        services = [name for name in KINDS[kind].services if name in (arguments.service or RATES)]
        if not services:
            continue
        with tempfile.TemporaryDirectory() as folder, running(kind, Path(folder)) as ring:
            print(f"the ring of {kind}", flush=True)
            orders = [_orders(ring, kind, service, arguments) for service in services]
            bad += asyncio.run(_fuzz(ring, KINDS[kind], orders, arguments.niceness))
    return 1 if bad else 0


def _orders(ring: Ring, kind: str, service: str, given: argparse.Namespace) -> list[Order]:
    """One order for each turn."""
    rate = (RATES[service] if given.rate is None else given.rate) or None
    addresses = {**ring.addresses, "gateway": ring.http.partition("://")[2]}
    inputs = given.inputs // (10 if service == "gateway" else 1)
    return [
        Order(kind, addresses, service, inputs // TURNS, given.seed * TURNS + turn, given.streams, rate)
        for turn in range(TURNS)
    ]


async def _fuzz(ring: Ring, kind: RingKind, orders: Sequence[Sequence[Order]], niceness: int) -> int:
    """Fuzz each service; returns the number of problems."""
    bad = 0
    async with ringline.AsyncClient(ring.address, patience=0) as client, sender(niceness) as send:
        for each in orders:
            http = host_and_port(each[0].addresses["gateway"])
            by_http = each[0].service == "gateway"
            ask = partial(kind.ask_by_http, *http) if by_http else partial(kind.ask, client)
            bad += await _fuzz_one(ring, ask, send, each)
    errors = read_logs([ring.log]).errors
    for line in errors[:20]:
        print("  " + line)
    return bad + len(errors) + (ring.process.poll() is not None)


async def _fuzz_one(
    ring: Ring,
    ask: Callable[[], Awaitable[object]],
    send: Callable[[Order], Awaitable[SendResult]],
    orders: Sequence[Order],
) -> int:
    """Fuzz one service in turns with pauses; returns the number of problems."""
    service, result, busy, expected = orders[0].service, SendResult(0, {}, []), 0.0, await ask()
    alone: list[float] = []
    beside: list[float] = []
    before = _mib(ring, service)
    for order in orders:
        alone += (await _latencies(ask, expected, asyncio.sleep(ALONE)))[0]
        start = time.monotonic()
        found, more = await _latencies(ask, expected, send(order))
        busy += time.monotonic() - start
        beside += found
        result += more
    print(f"{service}: {result.sent} inputs in {busy:.0f} s, {before} to {_mib(ring, service)} MiB, {result.codes}")
    latencies: dict[str, Any] = {"alone": LatencySummary.of(alone), "beside": LatencySummary.of(beside)}
    for when, one in latencies.items():
        print(f"  {when:6} p50 {one.p50:6.1f} ms   p99 {one.p99:6.1f} ms")
    slower = latencies["beside"].p99 / latencies["alone"].p99
    print(f"  p99 beside it {slower:.2f} times as long", flush=True)
    failures = [*result.failures, *([] if ring.process_lives(service) else [f"the {service} was restarted"])]
    if service == "gateway":
        await asyncio.sleep(1.0)
        kept = {series: ring.metric(service, series) for series in HELD}
        failures += [f"{series} is {value:g}, not 0" for series, value in kept.items() if value]
    for line in failures[:20]:
        print("  " + line)
    if slower > MAX_SLOWDOWN:
        print(f"  p99: expected at most {MAX_SLOWDOWN:g} times as long")
    return len(failures) + (slower > MAX_SLOWDOWN)


def _mib(ring: Ring, service: str) -> int:
    return resident(ring.pid(service)) >> 20


async def _latencies(
    ask: Callable[[], Awaitable[object]], expected: object, work: Awaitable[Any]
) -> tuple[list[float], Any]:
    """Seconds of requests sent one after the other while ``work`` runs; and what it returned."""
    task = asyncio.ensure_future(work)
    found = []
    while not task.done():
        start = time.perf_counter()
        answer = await ask()
        found.append(time.perf_counter() - start)
        if answer != expected:
            raise AssertionError(f"the client was told {answer!r}, not {expected!r}")
        await asyncio.sleep(0.01)
    return found, await task


if __name__ == "__main__":
    sys.exit(main())
