"""What a run showed: a table for people, JSON for machines, and what should not have been."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.abuse.attackers import ATTACKS, Made
from tests.abuse.load import Told
from tests.abuse.service import MIB
from tests.chaos.logs import Findings
from tests.chaos.report import quantile

SLOWER = 20.0
"""Times the calm 99th percentile that the load's may be under attack, on cores that the attackers share."""
SLOWER_THAN_FULL = 2.5
"""Times the 99th percentile beside a full engine that the load's may be beside attacks that fill it."""
SLOW = 5.0
"""Seconds that it may be, in any case."""
MIN_SAMPLE = 20
"""Requests below which there is no 99th percentile to judge."""
_WIDE = max(len(f"{attack.service}: {attack.name}") for attack in ATTACKS)
HEADING = (
    f"{'':{_WIDE}}  load: requests wrong    p50    p99  first token p99 | "
    "peak and final MiB: processor, engine, detokenizer | released"
)


@dataclass
class ServiceReading:
    """One service in one attack."""

    peak: int
    """Bytes in memory, the most; and at the end, after everything was released."""
    final: int
    budget: int
    slowest_probe: float
    failed_probes: int
    kept: dict[str, int] = field(default_factory=dict)
    """What it still held when everything should have been released."""


@dataclass
class Phase:
    """One attack, or what is measured before all of them: calm, and a full engine."""

    name: str
    told: Told
    services: dict[str, ServiceReading]
    made: Made | None = None
    seconds_to_release: float = 0.0
    """From the end of the attack; of clients that linger, from when they let go."""
    fills: bool = False
    """Whether the attack fills the engine."""

    def show(self) -> None:
        """Print a line under ``HEADING``."""
        told = self.told
        memory = "  ".join(f"{one.peak // MIB:5} {one.final // MIB:5}" for one in self.services.values())
        print(
            f"{self.name:{_WIDE}}  {told.requests:14} {sum(told.faults.values()):5} "
            f"{1000 * quantile(told.latencies, 0.5):6.0f} {1000 * quantile(told.latencies, 0.99):6.0f} "
            f"{1000 * quantile(told.first_tokens, 0.99):16.0f} | {memory:>50} | {self.seconds_to_release:6.1f} s",
            flush=True,
        )

    def problems(self, calm: Told, full: Told | None = None) -> Iterator[str]:
        """What should not have been, in words.

        ``calm`` is the load alone, ``full`` the load beside an engine that honest requests fill.
        """
        yield from self.told.details
        for service, reading in self.services.items():
            if reading.peak > reading.budget:
                yield f"{service} had {reading.peak // MIB} MiB of {reading.budget // MIB}"
            if reading.failed_probes:
                yield f"{service} did not answer for its health {reading.failed_probes} times"
            if reading.kept:
                yield f"{service} kept {reading.kept}"
        if self.made is not None:
            yield from (f"the attack is broken: {error}" for error in self.made.errors)
        yield from self._slowness(calm, full)

    def _slowness(self, calm: Told, full: Told | None) -> Iterator[str]:
        measures = [("calm", SLOWER, calm)]
        if self.fills and full is not None and len(full.latencies) >= MIN_SAMPLE:
            measures.append(("beside a full engine", SLOWER_THAN_FULL, full))
        if min(len(self.told.latencies), len(calm.latencies)) < MIN_SAMPLE:
            return
        p99s = {words: quantile(told.latencies, 0.99) for words, _, told in measures}
        limit = max(SLOW, *(slower * p99s[words] for words, slower, _ in measures))
        if (p99 := quantile(self.told.latencies, 0.99)) > limit:
            yield f"p99 {p99:.2f} s, " + ", ".join(f"{words} {seconds:.2f} s" for words, seconds in p99s.items())


@dataclass
class Report:
    """A whole run."""

    seed: int
    calm: Phase | None = None
    full: Phase | None = None
    """None where no attack fills the engine."""
    phases: list[Phase] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    """Services that ended."""
    logs: Findings = field(default_factory=Findings)

    @property
    def problems(self) -> list[str]:
        """Everything that should not have been, in words; none, if the run went well."""
        assert self.calm is not None
        full = None if self.full is None else self.full.told
        phases = [*filter(None, (self.calm, self.full)), *self.phases]
        found = [f"{phase.name}: {words}" for phase in phases for words in phase.problems(self.calm.told, full)]
        return found + [f"{name} died" for name in self.died] + _grouped(self.logs.errors)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Everything, in milliseconds and bytes."""
        phases = [*filter(None, (self.calm, self.full)), *self.phases]
        return {
            "seed": self.seed,
            "phases": [_phase_json(phase) for phase in phases],
            "died": self.died,
            "log_errors": self.logs.errors,
            "problems": self.problems,
        }


def _grouped(lines: Sequence[str]) -> list[str]:
    """Lines of logs: the first of each service and event, and how many there are."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        event = re.search(r'"event": "([^"]*)', line)
        kinds.setdefault((line.partition(":")[0], event[1] if event else ""), []).append(line)
    return [f"{len(same)} times in the log of {same[0]}" for same in kinds.values()]


def _phase_json(phase: Phase) -> dict[str, Any]:
    told = phase.told
    return {
        "name": phase.name,
        "requests": told.requests,
        "faults": dict(told.faults),
        "details": told.details,
        "latency_ms": {name: round(1000 * quantile(told.latencies, share)) for name, share in _SHARES.items()},
        "first_token_ms": {name: round(1000 * quantile(told.first_tokens, share)) for name, share in _SHARES.items()},
        "services": {name: vars(reading) for name, reading in phase.services.items()},
        "attack": None if phase.made is None else _made_json(phase.made),
        "seconds_to_release": round(phase.seconds_to_release, 2),
    }


def _made_json(made: Made) -> dict[str, Any]:
    return {"rounds": made.rounds, "sent_bytes": made.sent, "connections_lost": made.lost, "errors": made.errors}


_SHARES = {"p50": 0.5, "p99": 0.99}
