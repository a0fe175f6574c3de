"""The load of the overload benchmark is counted as what it is, and processes are seen as the kernel sees them."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.overload import Turns
from benchmarks.served.tenant_load import RequestShape, Tally, TenantLoad, background, merged
from benchmarks.served.usage import Watch
from tests.ring import Ring
from tests.waiting import until


async def test_requests_are_counted_by_what_became_of_them(ring: Ring) -> None:
    async with TenantLoad(ring.address, RequestShape(prompt=12, output=6, timeout=None)) as load:
        async with background(load.run_closed_loop(4)):
            await until(lambda: load.tally.good >= 12)
            assert len(load._sent) <= 4
            tally = load.fresh_tally()
        assert 3 * tally.good <= tally.good_tokens <= 9 * tally.good
        assert len(tally.ttft) == len(tally.tpot) == tally.good
        assert (tally.refused, tally.failures) == (0, {})
        async with background(load.run_open_loop(rate=200.0)):
            await until(lambda: load.tally.good >= 12)


def test_spans_are_counted_together() -> None:
    first, second = Tally(good=1, good_tokens=30, refused=2, seconds=1.0), Tally(good=2, good_tokens=60, seconds=2.0)
    second.ttft.append(0.5)
    second.failures["lost"] += 1
    whole = merged([first, second, second])
    assert (whole.good, whole.good_tokens, whole.refused, whole.seconds) == (5, 150, 2, 5.0)
    assert (list(whole.ttft), whole.failures) == ([0.5, 0.5], {"lost": 2})
    assert whole.goodput == 30.0
    assert (first.good, second.failures) == (1, {"lost": 1})


def test_goodput_is_compared_with_that_of_the_peaks_before_and_after() -> None:
    peaks, loads = (
        [Tally(good_tokens=tokens, seconds=1.0) for tokens in each] for each in ([100, 300, 100], [180, 100])
    )
    assert Turns(peaks, loads).shares == [0.9, 0.5]


async def test_what_could_not_end_in_its_time_is_no_good_answer(ring: Ring) -> None:
    async with TenantLoad(ring.address, RequestShape(prompt=12, output=1500, timeout=0.05)) as load:
        async with background(load.run_closed_loop(1)):
            await until(lambda: load.tally.failures.total() + load.tally.refused > 0)
        assert load.tally.good == 0


BALLAST = 64 << 20
USES_MEMORY_AND_TIME = f"""
import time
input()
ballast = bytearray(b"x") * {BALLAST}
begun = time.process_time()
while time.process_time() - begun < 0.3:
    pass
print("used", flush=True)
input()
"""


async def test_processes_are_watched() -> None:
    """A process of its own: what this one allocates may be memory that it was given before."""
    piped = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", USES_MEMORY_AND_TIME, **piped)
    assert child.stdin is not None
    assert child.stdout is not None
    async with Watch({"child": child.pid}) as watch:
        await until(lambda: len(watch.times) >= 1)
        child.stdin.write(b"begin\n")
        assert await child.stdout.readline() == b"used\n"
        used = len(watch.times)
        await until(lambda: len(watch.times) > used)
    child.stdin.write(b"end\n")
    assert await child.wait() == 0
    assert watch.resident["child"][-1] - watch.resident["child"][0] > BALLAST // 2
    assert watch.cpu_share["child"] > 0
