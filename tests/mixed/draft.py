"""The last draft of the contract beside this release: every link between the two is refused, and each ring works."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.fleet import Fleet, Release
from tests.chaos.load import ask, connect
from tests.chaos.outcome import find_defects
from tests.mixed.setting import Mix, Row, Setting, fleet_of

DRAFT = "0500ab1"
"""The last commit whose contract is a draft of version 1."""
SAID_WITHIN = 60.0
"""Seconds; services of the draft say after 10 s why they have no link."""
_REFUSALS = {
    "draft": "hello.contract_version: 0 is not spoken here: expected 1",
    "this": "hello: {} names no version of the contract: expected 1 to 1 among them",
}
"""What a service of each release answers a Hello of the other."""
_STOOD = ("engine attached", "detokenizer subscribed", "link ended")
"""What is logged of a link that stands, or stood."""


async def side_by_side(setting: Setting, draft: Release, this: Release) -> Row:
    """Two rings whose services all have each other's addresses."""
    row = Row(Mix.DRAFT, f"processor, detokenizer, engine {draft.name} and {this.name}")
    both = (draft, this)
    async with fleet_of(setting.directory / "side-by-side", both, both, both) as fleet:
        async with connect(f"unix:{fleet.wires['client>processor-1'].path}") as client:
            for spec in setting.specs:
                outcome = await ask(client, spec)
                defects = find_defects(outcome, setting.answers[spec.name], cancelled=False)
                row.problems += [f"{spec.name}: {defect}: {words}" for defect, words in defects.items()]
                row.requests += 1
        for dialling, dialled, address in _between_releases(fleet):
            expected = _REFUSALS[fleet.processes[dialled].release.name].format(dialling)
            log = fleet.processes[dialling].log
            end = time.monotonic() + SAID_WITHIN
            while not (said := expected in _reasons(log, address)) and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            row.refused += said
            if not said:
                row.problems.append(f"{dialling} is told by {dialled}: {_reasons(log, address) or 'nothing'}")
            if any(entry.get("event") in _STOOD for entry in _entries(log, address)):
                row.problems.append(f"{dialling} was linked to {dialled}")
    return row


def _between_releases(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    """Who dials whom by which address."""
    for wire in fleet.wires.values():
        dialling, _, dialled = wire.name.partition(">")
        if dialling != "client" and fleet.processes[dialling].release is not fleet.processes[dialled].release:
            yield dialling, dialled, f"unix:{wire.path}"


def _reasons(log: Path, address: str) -> list[str]:
    """Why there is no link to an address, by the log of the one who dials it."""
    return [entry["reason"] for entry in _entries(log, address) if entry.get("event") == "not linked"]


def _entries(log: Path, address: str) -> list[dict[str, Any]]:
    entries = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return [entry for entry in entries if entry.get("address") == address]
