"""Runs every ring of every mix, after recording the right answers from a ring of this release."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos.fleet import THIS, Release
from tests.chaos.load import connect, record_answers
from tests.chaos.workload import pool
from tests.mixed.context import Mix, Options, RingResult, RunContext, fleet_of
from tests.mixed.draft import DRAFT, side_by_side
from tests.mixed.releases import frozen, next_release, release_of
from tests.mixed.rings import numerics_of, one_of_each, two_of_each


async def run(options: Options, report: Callable[[RingResult], None]) -> list[RingResult]:
    """``report`` is called with each ring's result."""
    with tempfile.TemporaryDirectory(prefix="ringline-mixed-") as temporary:
        directory = options.keep or Path(temporary)
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        mixes = [(mix, *_releases(mix, options, directory)) for mix in options.mixes]
        context = await _record_context(options, directory)
        results = []
        for mix, older, newer in mixes:
            if mix is Mix.DRAFT:
                rings = [partial(side_by_side, context, older, newer)]
            else:
                rings = [
                    partial(one_of_each, context, mix, older, newer),
                    partial(one_of_each, context, mix, newer, older),
                    partial(two_of_each, context, mix, older, newer),
                ]
            for ring in rings:
                start = time.monotonic()
                result = await ring()
                result.seconds = time.monotonic() - start
                results.append(result)
                report(result)
        return results


def _releases(mix: Mix, options: Options, directory: Path) -> tuple[Release, Release]:
    """Return the older and the newer one."""
    match mix:
        case Mix.OLD:
            return release_of(options.old or frozen(), "old", directory / "old"), THIS
        case Mix.NEXT:
            return THIS, next_release(directory / "next")
        case Mix.DRAFT:
            return release_of(DRAFT, "draft", directory / "draft"), THIS


async def _record_context(options: Options, directory: Path) -> RunContext:
    specs = pool(options.seed, per_kind=1)
    async with fleet_of(directory / "r", [THIS], [THIS], [THIS]) as fleet, connect(fleet.fronts) as client:
        answers = await record_answers(client, specs, options.concurrency)
        return RunContext(options, directory, specs, answers, await numerics_of(fleet, "engine-0"))
