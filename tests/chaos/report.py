"""The results of a run, as lines and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.load import Tally
from tests.chaos.logs import Findings
from tests.chaos.outcome import Defect


@dataclass
class Phase:
    name: str
    seconds: float
    tally: Tally


@dataclass
class Pauses:
    """Pauses at single faults of one kind at one service."""

    service: str
    kind: str
    faults: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each request that noticed a fault."""


@dataclass
class AdapterCounts:
    """Of a run whose requests name adapters."""

    requests: Counter[str]
    """By what became of them."""
    changes: Counter[str]
    """Loads, unloads and replacements."""
    problems: list[str] = field(default_factory=list)
    """What engines lacked when nothing went wrong any more."""

    def all_problems(self) -> list[str]:
        if self.requests["with adapters"] and self.changes:
            return self.problems
        return [*self.problems, "no request named an adapter, or no adapter changed"]

    def line(self) -> str:
        of = self.requests
        changes = ", ".join(f"{count} {change}" for change, count in sorted(self.changes.items()))
        return (
            f"adapters: {of['with adapters']} requests with adapters, {of['moved']} times moved, {of['not there']} "
            f"refused as there was none, {of['not permitted']} as not permitted, {of['gone']} ended as no engine had "
            f"the replaced adapter; changed: {changes or 'nothing'}"
        )


@dataclass(frozen=True)
class Prefill:
    """TTFT in seconds of a prompt on an idle ring."""

    tokens: int
    cold: float
    cached: float


@dataclass
class Report:
    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    replaced: int = 0
    """Processes that were drained and started again."""
    phases: list[Phase] = field(default_factory=list)
    calm_first_token: float = 0.0
    """Median in seconds, while nothing went wrong."""
    calm_gap: float = 0.0
    """Median in seconds of each request's longest gap, while nothing went wrong."""
    pauses: list[Pauses] = field(default_factory=list)
    prefill: Prefill | None = None
    adapters: AdapterCounts | None = None
    """None: requests name none."""
    left: dict[str, Any] = field(default_factory=dict)
    """What each process still held after all requests had ended."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    """Of processes that drained with another exit code than 0."""
    logs: Findings = field(default_factory=Findings)

    @property
    def requests(self) -> int:
        return sum(phase.tally.requests for phase in self.phases)

    @property
    def problems(self) -> list[str]:
        """Empty if the run went well."""
        found = []
        for phase in self.phases:
            found += [f"{phase.name}: {detail}" for detail in phase.tally.details]
            if phase.tally.not_identical:
                found.append(f"{phase.name}: {phase.tally.not_identical} went on without being identical")
        if self.phases and not any(phase.tally.guessed for phase in self.phases):
            found.append("engines guessed no token right")
        found += [f"left at {name}: {held}" for name, held in self.left.items()]
        found += [f"{name} ended with {code}" for name, code in self.exit_codes.items()]
        found += self.adapters.all_problems() if self.adapters is not None else []
        return found + self.logs.errors

    def add(self, phase: Phase) -> None:
        """Keep and print a phase that has ended."""
        self.phases.append(phase)
        print("\n".join(_phase_lines(phase)), flush=True)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Pauses as quantiles."""
        return {
            "seed": self.seed,
            "requests": self.requests,
            "faults_injected": self.faults,
            "replaced": self.replaced,
            "phases": {phase.name: _phase_json(phase) for phase in self.phases},
            "calm_first_token_ms": round(1000 * self.calm_first_token, 1),
            "calm_gap_ms": round(1000 * self.calm_gap, 1),
            "pauses_at_single_faults_ms": {
                f"{one.service} {one.kind}": {"faults": one.faults, **_quantiles(one.seconds)} for one in self.pauses
            },
            "prefill_ms": None if self.prefill is None else _prefill_json(self.prefill),
            "adapters": None if self.adapters is None else asdict(self.adapters),
            "left": {name: held if isinstance(held, list) else asdict(held) for name, held in self.left.items()},
            "exit_codes": self.exit_codes,
            "suspected": self.logs.suspected,
            "trusted_again": self.logs.trusted_again,
            "rank_failures": self.logs.rank_failures,
            "log_errors": self.logs.errors,
        }

    def lines(self) -> list[str]:
        """The summary, without the phases, which ``add`` has printed."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.faults.items())
        lines = [
            f"seed {self.seed}: {self.requests} requests; injected: {kinds or 'nothing'}; replaced: {self.replaced}",
            f"while nothing goes wrong: first token after {1000 * self.calm_first_token:.0f} ms, "
            f"longest gap between two deltas {1000 * self.calm_gap:.0f} ms",
        ]
        lines += [f"{one.service} {one.kind} alone, {one.faults} times: {_words(one.seconds)}" for one in self.pauses]
        if self.prefill is not None:
            cost = ", ".join(f"{name} {value}" for name, value in _prefill_json(self.prefill).items())
            lines.append(f"first token of a prompt on an idle ring: {cost}")
        lines.append(f"peers suspected {self.logs.suspected} times, trusted again {self.logs.trusted_again} times")
        if self.adapters is not None:
            lines.append(self.adapters.line())
        if self.logs.rank_failures:
            ends = ", ".join(f"{count} × {cause}" for cause, count in self.logs.rank_failures.items())
            lines.append(f"engines ended with their ranks: {ends}")
        lines.append(f"left behind: {self.left or 'no ledgers, no blocks, no requests'}")
        lines += [f"PROBLEM {problem}" for problem in self.problems]
        return lines


def quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _pauses(tally: Tally) -> dict[str, list[float]]:
    """Pauses by cause in seconds, and the longest gap of every request."""
    pauses: dict[str, list[float]] = {}
    for pause in tally.pauses:
        what, _, why = pause.reason.split(" ", 2)
        pauses.setdefault(f"{what} {why}", []).append(pause.seconds)
    return {**pauses, "longest gap of each request": tally.gaps}


def _phase_json(phase: Phase) -> dict[str, Any]:
    tally = phase.tally
    return {
        "seconds": round(phase.seconds, 1),
        "requests": tally.requests,
        "sorts": dict(tally.kinds),
        "cancelled": tally.cancelled,
        "slow_readers": tally.slow,
        "cut": tally.cut,
        "guessing": tally.guessing,
        "guessed": tally.guessed,
        "moved": tally.moved,
        "not_identical": tally.not_identical,
        **{defect.replace(" ", "_"): tally.defects[defect] for defect in Defect},
        "details": tally.details,
        "pauses_ms": {what: _quantiles(values) for what, values in _pauses(tally).items() if values},
    }


def _phase_lines(phase: Phase) -> list[str]:
    tally = phase.tally
    counts = ", ".join(f"{tally.defects[defect]} {defect}" for defect in Defect)
    lines = [
        f"{phase.name}: {phase.seconds:.0f} s, {tally.requests} requests ({tally.cancelled} cancelled, "
        f"{tally.slow} read slowly, {tally.cut} cut, {tally.guessing} with {tally.guessed} tokens guessed), "
        f"{tally.moved} times moved: {counts}"
    ]
    for what, values in _pauses(tally).items():
        if values:
            lines.append(f"  {what}: {_words(values)}")
    return lines


def _words(seconds: Sequence[float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _quantiles(seconds).items())


def _prefill_json(prefill: Prefill) -> dict[str, float]:
    """Milliseconds."""
    return {
        "tokens": prefill.tokens,
        "cold": round(1000 * prefill.cold, 1),
        "cached": round(1000 * prefill.cached, 1),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    """Count, and quantiles in milliseconds."""
    if not values:
        return {"count": 0}
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}
    found = {name: round(1000 * quantile(values, share), 1) for name, share in shares.items()}
    return {"count": len(values), **found}
