"""Options, shared context and results of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ringline.request import build_request

from tests.chaos.fleet import Fleet
from tests.chaos.load import Tally
from tests.chaos.outcome import Defect, Outcome
from tests.chaos.workload import RequestSpec
from tests.processes import Release

LONGEST = RequestSpec(
    "longest",
    "Once upon a time",
    options={"temperature": 0.9, "seed": 7, "n": 4, "max_tokens": 850, "ignore_eos": True},
)
"""Sent right before a service is replaced, so that it must move."""


class Mix(StrEnum):
    """Which releases are mixed."""

    OLD = "old"
    """An older release and this one."""
    NEXT = "next"
    """This release and a simulated next one."""
    UPGRADE = "upgrade"
    """An older release, which becomes this one."""


@dataclass(frozen=True)
class Options:
    old: str | None = None
    """Commit, branch or tag; None: the commit that last changed the contract's baseline."""
    mixes: Sequence[Mix] = tuple(Mix)
    seed: int = 1
    concurrency: int = 6
    """Requests in flight."""
    keep: Path | None = None
    """Where trees and logs are kept; by default they are deleted."""


@dataclass(frozen=True)
class RunContext:
    """Shared by all rings of a run."""

    options: Options
    directory: Path
    """Of trees and logs."""
    specs: Sequence[RequestSpec]
    answers: Mapping[str, Outcome]
    """The right answers, recorded from a ring of this release alone."""
    numerics: str
    """Of that ring's engine."""

    def specs_for(self, mix: Mix) -> list[RequestSpec]:
        """Those that both releases answer: an older one refuses what needs a capability, as that of the baseline has
        none of them.
        """
        return [spec for spec in self.specs if mix is not Mix.OLD or not needs(spec)]


def needs(spec: RequestSpec) -> Sequence[str]:
    """The capabilities that a request names."""
    given = spec.arguments()
    return build_request(given.pop("prompt", None), given.pop("messages", None), None, given).requires


@dataclass
class Step:
    """Of an upgrade."""

    name: str
    seconds: float
    tally: Tally
    """Of the requests that ended in it."""
    drained: float | None = None
    """Seconds from SIGTERM to the exit of the service that is replaced."""

    HEAD = "  step             seconds   drained  requests  moved  resumed  lost  wrong  longest pause"

    def show(self) -> str:
        """A line of the table."""
        tally, drained = self.tally, "" if self.drained is None else f"{self.drained:.2f} s"
        lost = tally.defects[Defect.LOST] + tally.defects[Defect.STUCK]
        return (
            f"  {self.name:15} {self.seconds:6.1f} s {drained:>9} {tally.requests:9} {tally.moved:6} {tally.resumed:8} "
            f"{lost:5} {tally.defects.total() - lost:6} {max(tally.gaps, default=0):12.2f} s"
        )


@dataclass
class RingResult:
    mix: Mix
    ring: str
    seconds: float = 0.0
    requests: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    """Requests that moved to the other release when a service was killed, by service and direction."""
    refused: int = 0
    """Links and requests that had to be refused by name, and were."""
    notes: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def show(self) -> None:
        print(
            f"{self.mix:7}  {self.ring:47} {self.seconds:4.0f} s  {self.requests:4} requests  "
            f"{self.refused} refused by name  {len(self.problems)} problems",
            *(f"moved: {count:3} of {what}" for what, count in self.moved.items()),
            *self.notes,
            *((Step.HEAD, *(step.show() for step in self.steps)) if self.steps else ()),
            *self.problems[:20],
            sep="\n       ",
            flush=True,
        )


@asynccontextmanager
async def fleet_of(
    directory: Path, processors: Sequence[Release], detokenizers: Sequence[Release], engines: Sequence[Release]
) -> AsyncIterator[Fleet]:
    """Start a ring with one process for each of the releases given."""
    await asyncio.to_thread(directory.mkdir)
    kinds = {"processor": processors, "detokenizer": detokenizers, "engine": engines}
    releases = {f"{kind}-{index}": one for kind, many in kinds.items() for index, one in enumerate(many)}
    async with Fleet(directory, len(processors), len(detokenizers), len(engines), releases=releases) as fleet:
        yield fleet
