"""Rings of two releases: services of both, killed under load, and every answer as a ring of one release gives it."""

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
from tests.mixed.draft import DRAFT, side_by_side
from tests.mixed.releases import frozen, next_release, release_of
from tests.mixed.rings import numerics_of, one_of_each, two_of_each
from tests.mixed.setting import Mix, Options, Row, Setting, fleet_of


async def run(options: Options, tell: Callable[[Row], None]) -> list[Row]:
    """Every ring, one after the other; ``tell`` hears of each when it is done."""
    with tempfile.TemporaryDirectory(prefix="ringline-mixed-") as temporary:
        directory = options.keep or Path(temporary)
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        mixes = [(mix, *_releases(mix, options, directory)) for mix in options.mixes]
        setting = await _setting(options, directory)
        rows = []
        for mix, older, newer in mixes:
            if mix is Mix.DRAFT:
                rings = [partial(side_by_side, setting, older, newer)]
            else:
                rings = [
                    partial(one_of_each, setting, mix, older, newer),
                    partial(one_of_each, setting, mix, newer, older),
                    partial(two_of_each, setting, mix, older, newer),
                ]
            for ring in rings:
                start = time.monotonic()
                row = await ring()
                row.seconds = time.monotonic() - start
                rows.append(row)
                tell(row)
        return rows


def _releases(mix: Mix, options: Options, directory: Path) -> tuple[Release, Release]:
    """The older one and the newer one."""
    match mix:
        case Mix.OLD:
            return release_of(options.old or frozen(), "old", directory / "old"), THIS
        case Mix.NEXT:
            return THIS, next_release(directory / "next")
        case Mix.DRAFT:
            return release_of(DRAFT, "draft", directory / "draft"), THIS


async def _setting(options: Options, directory: Path) -> Setting:
    specs = pool(options.seed, per_kind=1)
    async with fleet_of(directory / "r", [THIS], [THIS], [THIS]) as fleet, connect(fleet.fronts) as client:
        answers = await record_answers(client, specs, options.concurrency)
        return Setting(options, directory, specs, answers, await numerics_of(fleet, "engine-0"))
