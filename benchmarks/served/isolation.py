"""Isolation of tenants: TTFT and TPOT of one tenant while another is idle, behaves, floods, or floods in bursts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.report import Row
from benchmarks.served.tenant_load import RequestShape, Tally, TenantLoad, background, figure_ms, merged, send_in_bursts

SHARE = 0.1
"""Load of the measured tenant, as a share of the peak."""
_NEIGHBOUR_SHARE = 0.7
"""Load of a neighbor that behaves, as a share of the peak."""
_BURST_SECONDS = 2.0


async def measure_isolation(
    address: str, shape: RequestShape, peak: float, times: float, rounds: int, settle: float, seconds: float
) -> list[Row]:
    """Return a row for each neighbor; they take turns, ``rounds`` times for ``seconds`` each.

    ``peak``: requests per second; a flood has ``times`` as many. ``settle``: seconds before counting begins.
    """
    neighbours = {
        "nobody": None,
        f"{_NEIGHBOUR_SHARE:.0%} of the peak": lambda tally: _offer(address, shape, _NEIGHBOUR_SHARE * peak, tally),
        "a flood": lambda tally: _offer(address, shape, times * peak, tally),
        "floods that begin": lambda tally: send_in_bursts(address, shape, "other", times * peak, _BURST_SECONDS, tally),
    }
    seen: dict[str, list[Tally]] = {name: [] for name in neighbours}
    beside: dict[str, Tally] = {name: Tally() for name in neighbours}
    for _ in range(rounds):
        for name, neighbour in neighbours.items():
            async with TenantLoad(address, shape, "one") as load:
                work = [load.run_open_loop(SHARE * peak)]
                if neighbour is not None:
                    work.append(neighbour(beside[name]))
                async with background(*work):
                    await asyncio.sleep(settle)
                    load.fresh_tally()
                    await asyncio.sleep(seconds)
                    seen[name].append(load.fresh_tally())
    return [_row(name, tallies, beside[name]) for name, tallies in seen.items()]


async def _offer(address: str, shape: RequestShape, rate: float, tally: Tally) -> None:
    async with TenantLoad(address, shape, "other") as other:
        try:
            await other.run_open_loop(rate)
        finally:
            tally.add(other.fresh_tally())


def _row(name: str, rounds: Sequence[Tally], neighbour: Tally) -> Row:
    tally = merged(rounds)
    return {
        "beside": name,
        "TTFT p50 ms": figure_ms(tally.ttft, "p50"),
        "TTFT p99 ms": figure_ms(tally.ttft, "p99"),
        "p99 by round": " ".join(f"{figure_ms(each.ttft, 'p99') or 0.0:.0f}" for each in rounds),
        "TPOT p50 ms": figure_ms(tally.tpot, "p50"),
        "complete": tally.good,
        "refused": tally.refused,
        "failed": tally.failures.total(),
        "neighbour tok/s": neighbour.goodput if neighbour.seconds else None,
    }
