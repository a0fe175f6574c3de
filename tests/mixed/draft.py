"""The last draft of the contract beside this release: they refuse each other's links, and each one's ring works."""

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
from tests.mixed.context import Mix, RingResult, RunContext, fleet_of

DRAFT = "0500ab1"
"""The last commit whose contract is a draft of version 1."""
LOG_TIMEOUT = 60.0
"""Seconds; services of the draft log after 10 s why a link failed."""
_REFUSALS = {
    "draft": "hello.contract_version: 0 is not spoken here: expected 1",
    "this": "hello: {} names no version of the contract: expected one of 1 to 1",
}
"""A service's answer to a Hello of the other release, by its own release."""
_LINKED_EVENTS = ("engine attached", "detokenizer subscribed", "link ended")
"""Log events of a link that was established."""


async def side_by_side(context: RunContext, draft: Release, this: Release) -> RingResult:
    """Start two rings whose services all dial each other."""
    result = RingResult(Mix.DRAFT, f"processor, detokenizer, engine {draft.name} and {this.name}")
    both = (draft, this)
    async with fleet_of(context.directory / "side-by-side", both, both, both) as fleet:
        async with connect(f"unix:{fleet.wires['client>processor-1'].path}") as client:
            for spec in context.specs:
                outcome = await ask(client, spec)
                defects = find_defects(outcome, context.answers[spec.name], cancelled=False)
                result.problems += [f"{spec.name}: {defect}: {words}" for defect, words in defects.items()]
                result.requests += 1
        for dialling, dialled, address in _between_releases(fleet):
            expected = _REFUSALS[fleet.processes[dialled].release.name].format(dialling)
            log = fleet.processes[dialling].log
            end = time.monotonic() + LOG_TIMEOUT
            while not (logged := expected in _reasons(log, address)) and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            result.refused += logged
            if not logged:
                result.problems.append(f"{dialling} is told by {dialled}: {_reasons(log, address) or 'nothing'}")
            if any(entry.get("event") in _LINKED_EVENTS for entry in _entries(log, address)):
                result.problems.append(f"{dialling} was linked to {dialled}")
    return result


def _between_releases(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    """Yield who dials, who is dialled, and the address."""
    for wire in fleet.wires.values():
        dialling, _, dialled = wire.name.partition(">")
        if dialling != "client" and fleet.processes[dialling].release is not fleet.processes[dialled].release:
            yield dialling, dialled, f"unix:{wire.path}"


def _reasons(log: Path, address: str) -> list[str]:
    """Logged reasons why ``address`` is not linked."""
    return [entry["reason"] for entry in _entries(log, address) if entry.get("event") == "not linked"]


def _entries(log: Path, address: str) -> list[dict[str, Any]]:
    entries = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return [entry for entry in entries if entry.get("address") == address]
