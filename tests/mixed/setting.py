"""What a run mixes, and what came of each of its rings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.chaos.fleet import Fleet, Release
from tests.chaos.outcome import Outcome
from tests.chaos.workload import RequestSpec


class Mix(StrEnum):
    """Which releases meet."""

    OLD = "old"
    """An older release, and this one."""
    NEXT = "next"
    """This release, and a made-up next one."""
    DRAFT = "draft"
    """The last draft of the contract, and this release: they refuse each other."""


@dataclass(frozen=True)
class Options:
    """Of a run."""

    old: str | None = None
    """Commit, branch or tag; None: the one at which the baseline of the contract was taken."""
    mixes: Sequence[Mix] = tuple(Mix)
    seed: int = 1
    concurrency: int = 6
    """Requests at a time."""
    keep: Path | None = None
    """Where trees and logs stay; else they are removed."""


@dataclass(frozen=True)
class Setting:
    """What all rings of a run have in common."""

    options: Options
    directory: Path
    """Of trees and logs."""
    specs: Sequence[RequestSpec]
    answers: Mapping[str, Outcome]
    """The right ones, of a ring of this release alone."""
    numerics: str
    """Of that ring's engine."""


@dataclass
class Row:
    """What came of one ring."""

    mix: Mix
    ring: str
    seconds: float = 0.0
    requests: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    """Requests that went on at the other release when a service was killed, by service and direction."""
    refused: int = 0
    """Links and requests that had to be refused by name, and were."""
    problems: list[str] = field(default_factory=list)

    def show(self) -> None:
        """Print it, for people."""
        print(
            f"{self.mix:5}  {self.ring:47} {self.seconds:4.0f} s  {self.requests:4} requests  "
            f"{self.refused} refused by name  {len(self.problems)} problems",
            *(f"moved: {count:3} of {what}" for what, count in self.moved.items()),
            *self.problems[:20],
            sep="\n       ",
            flush=True,
        )


@asynccontextmanager
async def fleet_of(
    directory: Path, processors: Sequence[Release], detokenizers: Sequence[Release], engines: Sequence[Release]
) -> AsyncIterator[Fleet]:
    """A ring in which each process runs the release that stands in its place."""
    await asyncio.to_thread(directory.mkdir)
    kinds = {"processor": processors, "detokenizer": detokenizers, "engine": engines}
    releases = {f"{kind}-{index}": one for kind, many in kinds.items() for index, one in enumerate(many)}
    async with Fleet(directory, len(processors), len(detokenizers), len(engines), releases=releases) as fleet:
        yield fleet
