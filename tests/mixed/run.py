"""Runs every ring of every mix, after recording the right answers from a ring of this release."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.chaos.load import connect, record_answers
from tests.chaos.workload import pool
from tests.mixed.context import LONGEST, Mix, Options, RingResult, RunContext, fleet_of
from tests.mixed.releases import frozen, next_release, release_of
from tests.mixed.rings import numerics_of, one_of_each, two_of_each
from tests.mixed.upgrade import rolling_upgrade
from tests.processes import THIS, Release

_Ring = tuple[Callable[[RunContext, Mix, Release, Release], Awaitable[RingResult]], Release, Release]


async def run(options: Options, report: Callable[[RingResult], None]) -> list[RingResult]:
    """``report`` is called with each ring's result."""
    with tempfile.TemporaryDirectory(prefix="ringline-mixed-") as temporary:
        directory = options.keep or Path(temporary)
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        old = _older(options, directory) if {Mix.OLD, Mix.UPGRADE} & set(options.mixes) else None
        mixes = [(mix, *_releases(mix, old, directory)) for mix in options.mixes]
        context = await _record_context(options, directory)
        results = []
        for mix, older, newer in mixes:
            mixed: tuple[_Ring, ...] = (
                (one_of_each, older, newer),
                (one_of_each, newer, older),
                (two_of_each, older, newer),
            )
            for ring, front, back in mixed if mix is not Mix.UPGRADE else ((rolling_upgrade, older, newer),):
                start = time.monotonic()
                result = await ring(context, mix, front, back)
                result.seconds = time.monotonic() - start
                results.append(result)
                report(result)
        return results


def _older(options: Options, directory: Path) -> Release:
    return release_of(options.old or frozen(), "old", directory / "old")


def _releases(mix: Mix, old: Release | None, directory: Path) -> tuple[Release, Release]:
    """Return the older and the newer one."""
    return (THIS, next_release(directory / "next")) if mix is Mix.NEXT or old is None else (old, THIS)


async def _record_context(options: Options, directory: Path) -> RunContext:
    specs = pool(options.seed, per_kind=1)
    async with fleet_of(directory / "r", [THIS], [THIS], [THIS]) as fleet, connect(fleet.fronts) as client:
        answers = await record_answers(client, [*specs, LONGEST], options.concurrency)
        return RunContext(options, directory, specs, answers, await numerics_of(fleet, "engine-0"))
