"""Fuzzes the three services of a ring of its own, beside a client that behaves: ``python -m tests.fuzz``.

Prints per service how calls ended, its memory before and after, and the client's latency alone and meanwhile. Exit
code 1 if a service failed, hung or died, or the client was answered wrongly.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ringline

from tests.fuzz.targets import fuzzing
from tests.ring import Ring, start_ring, stop_ring

SERVICES = ("processor", "engine", "detokenizer")
ALONE = 10.0
"""Seconds for which the client is measured with nobody beside it."""
_ASKED = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


def main() -> int:
    """Run and report; returns the exit code."""
    parser = argparse.ArgumentParser(description="Send damaged messages to every service of a ring.")
    parser.add_argument("--inputs", type=int, default=100_000, help="damaged messages per service")
    parser.add_argument("--seed", type=int, default=0, help="what is sent follows from it")
    parser.add_argument("--streams", type=int, default=4, help="calls at a time")
    parser.add_argument("--service", choices=SERVICES, action="append", help="only this; can be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ring = start_ring(Path(folder))
        try:
            services = arguments.service or SERVICES
            return asyncio.run(_fuzz(ring, services, arguments.inputs, arguments.seed, arguments.streams))
        finally:
            stop_ring(ring)


async def _fuzz(ring: Ring, services: Sequence[str], inputs: int, seed: int, streams: int) -> int:
    bad = 0
    async with ringline.AsyncClient(ring.address, patience=0) as client:
        expected = (await client.generate("Once upon a time", **_ASKED)).text
        alone = await _latencies(client, expected, asyncio.sleep(ALONE))
        print(f"{'client alone':<14} p50 {_share(alone, 0.5):6.1f} ms   p99 {_share(alone, 0.99):6.1f} ms")
        for service in services:
            pid, address = ring.pid(service), ring.state.services[service].address
            before, start = _resident(pid), time.monotonic()
            codes: dict[str, int] = {}
            broken: list[str] = []
            work = [_one(address, service, inputs // streams, seed * 1000 + n, codes, broken) for n in range(streams)]
            beside = await _latencies(client, expected, asyncio.gather(*work))
            print(
                f"{service:<14} p50 {_share(beside, 0.5):6.1f} ms   p99 {_share(beside, 0.99):6.1f} ms   "
                f"{before:.0f} to {_resident(pid):.0f} MiB   "
                f"{inputs} inputs in {time.monotonic() - start:.0f} s   {codes}"
            )
            for line in broken[:20]:
                print("  " + line)
            bad += len(broken)
    return 1 if bad or ring.process.poll() is not None else 0


async def _one(address: str, service: str, inputs: int, seed: int, codes: dict[str, int], broken: list[str]) -> None:
    async with fuzzing(address, seed) as fuzzer:
        await fuzzer.run(service, inputs)
    broken += fuzzer.broken
    for code, count in fuzzer.codes.items():
        codes[code] = codes.get(code, 0) + count


async def _latencies(client: ringline.AsyncClient, expected: str, work: object) -> list[float]:
    """Milliseconds of request after request, one at a time, while ``work`` goes on."""
    task = asyncio.ensure_future(work)  # type: ignore[arg-type]
    found = []
    while not task.done():
        start = time.perf_counter()
        answer = await client.generate("Once upon a time", **_ASKED)
        found.append(1000 * (time.perf_counter() - start))
        if answer.text != expected:
            raise AssertionError(f"the client was told {answer.text!r}, not {expected!r}")
        await asyncio.sleep(0.01)
    await task
    return sorted(found)


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _resident(pid: int) -> float:
    """MiB that a process has in memory."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
