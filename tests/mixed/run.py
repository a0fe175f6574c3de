"""Runs every ring of every mix, after recording the right answers from a ring of this release."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.load import connect, record_answers
from tests.chaos.workload import pool
from tests.mixed.context import Mix, Options, RingResult, RunContext, fleet_of
from tests.mixed.releases import frozen, next_release, release_of
from tests.mixed.rings import numerics_of, one_of_each, two_of_each
from tests.processes import THIS, Release


async def run(options: Options, report: Callable[[RingResult], None]) -> list[RingResult]:
    """``report`` is called with each ring's result."""
    with tempfile.TemporaryDirectory(prefix="ringline-mixed-") as temporary:
        directory = options.keep or Path(temporary)
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        mixes = [(mix, *_releases(mix, options, directory)) for mix in options.mixes]
        context = await _record_context(options, directory)
        results = []
        for mix, older, newer in mixes:
            for ring, front, back in (
                (one_of_each, older, newer),
                (one_of_each, newer, older),
                (two_of_each, older, newer),
            ):
                start = time.monotonic()
                result = await ring(context, mix, front, back)
                result.seconds = time.monotonic() - start
                results.append(result)
                report(result)
        return results


def _releases(mix: Mix, options: Options, directory: Path) -> tuple[Release, Release]:
    """Return the older and the newer one."""
    if mix is Mix.OLD:
        return release_of(options.old or frozen(), "old", directory / "old"), THIS
    return THIS, next_release(directory / "next")


async def _record_context(options: Options, directory: Path) -> RunContext:
    specs = pool(options.seed, per_kind=1)
    async with fleet_of(directory / "r", [THIS], [THIS], [THIS]) as fleet, connect(fleet.fronts) as client:
        answers = await record_answers(client, specs, options.concurrency)
        return RunContext(options, directory, specs, answers, await numerics_of(fleet, "engine-0"))
