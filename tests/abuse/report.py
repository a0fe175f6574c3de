"""The results of a run, as a table and as JSON, and its problems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.abuse.attackers import ATTACKS, AttackResult
from tests.abuse.load import LoadResult
from tests.abuse.service import MIB
from tests.chaos.logs import Findings
from tests.chaos.report import quantile

SLOWER = 20.0
"""Limit of p99 latency under attack, as a multiple of that in calm. Attackers share the cores."""
SLOWER_THAN_FULL = 2.5
"""Limit of p99 latency under attacks that fill the engine, as a multiple of that beside a full engine."""
SLOW = 5.0
"""Seconds of p99 latency that are always allowed."""
MIN_SAMPLE = 20
"""With fewer requests p99 is not checked."""
_WIDE = max(len(f"{attack.service}: {attack.name}") for attack in ATTACKS)
HEADING = (
    f"{'':{_WIDE}}  load: requests wrong    p50    p99  first token p99 | vectors:  wrong    p50    p99 | released | "
    "peak and final MiB: processor, engine, detokenizer, embedder, reranker"
)


@dataclass
class ServiceReading:
    """Memory and health of one service in one phase."""

    peak: int
    """Resident bytes: at most, and (``final``) after everything was released."""
    final: int
    budget: int
    slowest_probe: float
    failed_probes: int
    kept: dict[str, int] = field(default_factory=dict)
    """Resources that it did not release."""


@dataclass
class Phase:
    """One attack, or a measurement before all attacks: calm, and a full engine."""

    name: str
    result: LoadResult
    vectors: LoadResult | None
    """Of requests for vectors; None if there were none."""
    services: dict[str, ServiceReading]
    made: AttackResult | None = None
    seconds_to_release: float = 0.0
    """From the end of the attack, or from when lingering clients disconnect."""
    fills: bool = False

    def show(self) -> None:
        """Print a line under ``HEADING``."""
        result, vectors = self.result, self.vectors or LoadResult()
        memory = "  ".join(f"{one.peak // MIB:5} {one.final // MIB:5}" for one in self.services.values())
        print(
            f"{self.name:{_WIDE}}  {result.requests:14} {sum(result.defects.values()):5} "
            f"{1000 * quantile(result.latencies, 0.5):6.0f} {1000 * quantile(result.latencies, 0.99):6.0f} "
            f"{1000 * quantile(result.first_tokens, 0.99):16.0f} | "
            f"{vectors.requests:8} {sum(vectors.defects.values()):6} "
            f"{1000 * quantile(vectors.latencies, 0.5):6.0f} {1000 * quantile(vectors.latencies, 0.99):6.0f} | "
            f"{self.seconds_to_release:6.1f} s | {memory}",
            flush=True,
        )

    def problems(self, calm: Phase, full: Phase | None = None) -> Iterator[str]:
        """``calm``: the phase without an attack; ``full``: beside engines that honest requests fill."""
        yield from self.result.details
        yield from () if self.vectors is None else self.vectors.details
        for service, reading in self.services.items():
            if reading.peak > reading.budget:
                yield f"{service} had {reading.peak // MIB} MiB of {reading.budget // MIB}"
            if reading.failed_probes:
                yield f"{service} did not answer {reading.failed_probes} times"
            if reading.kept:
                yield f"{service} kept {reading.kept}"
        if self.made is not None:
            yield from (f"the attack is broken: {error}" for error in self.made.errors)
        yield from self._slowness(self.result, calm.result, None if full is None else full.result)
        if self.vectors is not None and calm.vectors is not None:
            for words in self._slowness(self.vectors, calm.vectors, None if full is None else full.vectors):
                yield f"vectors: {words}"

    def _slowness(self, result: LoadResult, calm: LoadResult, full: LoadResult | None) -> Iterator[str]:
        measures = [("calm", SLOWER, calm)]
        if self.fills and full is not None and len(full.latencies) >= MIN_SAMPLE:
            measures.append(("beside a full engine", SLOWER_THAN_FULL, full))
        if min(len(result.latencies), len(calm.latencies)) < MIN_SAMPLE:
            return
        p99s = {words: quantile(each.latencies, 0.99) for words, _, each in measures}
        limit = max(SLOW, *(slower * p99s[words] for words, slower, _ in measures))
        if (p99 := quantile(result.latencies, 0.99)) > limit:
            yield f"p99 {p99:.2f} s, " + ", ".join(f"{words} {seconds:.2f} s" for words, seconds in p99s.items())


@dataclass
class Report:
    seed: int
    calm: Phase | None = None
    full: Phase | None = None
    """None if no attack fills the engine."""
    phases: list[Phase] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    """Services whose process ended."""
    logs: Findings = field(default_factory=Findings)

    @property
    def problems(self) -> list[str]:
        """Empty if the run went well."""
        assert self.calm is not None
        phases = [*filter(None, (self.calm, self.full)), *self.phases]
        found = [f"{phase.name}: {words}" for phase in phases for words in phase.problems(self.calm, self.full)]
        return found + [f"{name} died" for name in self.died] + _grouped(self.logs.errors)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Times in milliseconds, sizes in bytes."""
        phases = [*filter(None, (self.calm, self.full)), *self.phases]
        return {
            "seed": self.seed,
            "phases": [_phase_json(phase) for phase in phases],
            "died": self.died,
            "log_errors": self.logs.errors,
            "problems": self.problems,
        }


def _grouped(lines: Sequence[str]) -> list[str]:
    """Group log lines by service and event; shows the first line of each group, and its size."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        event = re.search(r'"event": "([^"]*)', line)
        kinds.setdefault((line.partition(":")[0], event[1] if event else ""), []).append(line)
    return [f"{len(same)} times in the log of {same[0]}" for same in kinds.values()]


def _phase_json(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        **_result_json(phase.result),
        "vectors": phase.vectors and _result_json(phase.vectors),
        "services": {name: vars(reading) for name, reading in phase.services.items()},
        "attack": phase.made and asdict(phase.made),
        "seconds_to_release": round(phase.seconds_to_release, 2),
    }


def _result_json(result: LoadResult) -> dict[str, Any]:
    return {
        "requests": result.requests,
        "faults": dict(result.defects),
        "details": result.details,
        "latency_ms": {name: round(1000 * quantile(result.latencies, share)) for name, share in _SHARES.items()},
        "first_token_ms": {name: round(1000 * quantile(result.first_tokens, share)) for name, share in _SHARES.items()},
    }


_SHARES = {"p50": 0.5, "p99": 0.99}
