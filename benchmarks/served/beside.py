"""What one tenant notices of another: of none, of one that behaves, of one that floods, of one that does so anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.report import Row
from benchmarks.served.flood import Flood, Shape, Tally, background, come_and_go, part, together

SHARE = 0.1
"""Of the peak: what the tenant offers that is looked at."""
_NEIGHBOUR_SHARE = 0.7
"""Of the peak: what the one beside it offers if it behaves."""
_FLOOD_LIFE = 2.0
"""Seconds of each of the floods that begin."""


async def beside(
    address: str, shape: Shape, peak: float, times: float, rounds: int, settle: float, seconds: float
) -> list[Row]:
    """A row for each neighbour; they take turns, ``rounds`` times for ``seconds`` each.

    ``peak``: requests per second; a flood has ``times`` as many. ``settle``: seconds before anything is counted.
    """
    neighbours = {
        "nobody": None,
        f"{_NEIGHBOUR_SHARE:.0%} of the peak": lambda: _offer(address, shape, _NEIGHBOUR_SHARE * peak),
        "a flood": lambda: _offer(address, shape, times * peak),
        "floods that begin": lambda: come_and_go(address, shape, "other", times * peak, _FLOOD_LIFE),
    }
    seen: dict[str, list[Tally]] = {name: [] for name in neighbours}
    for _ in range(rounds):
        for name, neighbour in neighbours.items():
            async with Flood(address, shape, "one") as one:
                work = [one.offer(SHARE * peak)]
                if neighbour is not None:
                    work.append(neighbour())
                async with background(*work):
                    await asyncio.sleep(settle)
                    one.fresh_tally()
                    await asyncio.sleep(seconds)
                    seen[name].append(one.fresh_tally())
    return [_row(name, tallies) for name, tallies in seen.items()]


async def _offer(address: str, shape: Shape, rate: float) -> None:
    async with Flood(address, shape, "other") as other:
        await other.offer(rate)


def _row(name: str, rounds: Sequence[Tally]) -> Row:
    tally = together(rounds)
    return {
        "beside": name,
        "TTFT p50 ms": part(tally.ttft, "p50"),
        "TTFT p99 ms": part(tally.ttft, "p99"),
        "p99 by round": " ".join(f"{part(each.ttft, 'p99') or 0.0:.0f}" for each in rounds),
        "TPOT p50 ms": part(tally.tpot, "p50"),
        "complete": tally.good,
        "refused": tally.refused,
        "failed": tally.others.total(),
    }
