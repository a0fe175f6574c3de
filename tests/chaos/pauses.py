"""Pauses that a client sees at a single fault, and the cost of a prefill to compare them with."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ringline import AsyncClient

from tests.chaos.faults import OF_RANKS_PER_MINUTE, Fault, Injector, Kind
from tests.chaos.fleet import Fleet
from tests.chaos.load import ClosedLoop
from tests.chaos.outcome import Gap
from tests.chaos.report import Pauses, Prefill, quantile

SERVICES = ("engine", "detokenizer", "processor")
KINDS = (Kind.KILL, Kind.HANG, Kind.CUT)
HANG = 4.0
"""Seconds; more than the 2 s after which a peer is suspected."""
REST = 2.0
"""Seconds between two faults, in which all links are restored."""
_DIALLED_BY = {"engine": "processor", "detokenizer": "processor", "processor": "client"}
"""Which links are cut, by the service that dials them."""
LAG = 0.5
"""Seconds after a fault in which deltas that were on their way may still arrive."""
_PREFILLS = 8
_IDS = 270
"""Every model has as many."""


@dataclass(frozen=True)
class SingleFault:
    """A fault while nothing else goes wrong."""

    service: str
    kind: Kind
    at: float
    """Monotonic time."""


async def inject_each(fleet: Fleet, repeats: int, seed: int) -> list[SingleFault]:
    """Kill, hang and cut off one process at a time, ``repeats`` times for each service and kind."""
    random_ = random.Random(seed)
    faults = []
    for _ in range(repeats):
        for service in SERVICES:
            for kind in KINDS:
                name = random_.choice(fleet.names[service])
                faults.append(SingleFault(service, kind, time.monotonic()))
                await _inject(fleet, name, kind)
                await fleet.processes[name].wait_serving()
                await asyncio.sleep(REST)
        for kind in OF_RANKS_PER_MINUTE if fleet.ranks else ():
            name = random_.choice(sorted(fleet.ranks))
            faults.append(SingleFault("rank", kind, time.monotonic()))
            await _inject(fleet, name, kind)
            await asyncio.sleep(REST)  # meanwhile it has ended, and was started again
            await fleet.processes[name].wait_serving()
    return faults


async def _inject(fleet: Fleet, name: str, kind: Kind) -> None:
    if kind is not Kind.CUT:
        await Injector(fleet).inject(Fault(0.0, kind, name, HANG))
        return
    for wire in fleet.wires.values():
        if wire.name.startswith(_DIALLED_BY[fleet.processes[name].kind]) and wire.name.endswith(f">{name}"):
            wire.cut()


def pauses_of(faults: Iterable[SingleFault], gaps: Iterable[Gap], noticed: float) -> list[Pauses]:
    """By service and kind, the gaps of requests that noticed a fault.

    A request noticed it if it moved, or if its gap is longer than ``noticed`` seconds.
    """
    found: dict[tuple[str, Kind], Pauses] = {}
    noticed_gaps = [gap for gap in gaps if gap.announced or gap.seconds > noticed]
    for fault in faults:
        pauses = found.setdefault((fault.service, fault.kind), Pauses(fault.service, fault.kind))
        pauses.faults += 1
        pauses.seconds += [gap.seconds for gap in noticed_gaps if gap.begun - LAG <= fault.at < gap.ended]
    return list(found.values())


async def prefill_cost(client: AsyncClient, tokens: int, seed: int) -> Prefill:
    """Median TTFT of prompts of ``tokens`` ids on an idle ring, first uncached, then cached."""
    random_ = random.Random(seed)
    cold: list[float] = []
    cached: list[float] = []
    for _ in range(_PREFILLS):
        ids = random_.choices(range(3, _IDS), k=tokens)
        for times in (cold, cached):
            begun = time.monotonic()
            await client.generate(token_ids=ids, max_tokens=1, ignore_eos=True, temperature=0.0)
            times.append(time.monotonic() - begun)
    return Prefill(tokens, quantile(cold, 0.5), quantile(cached, 0.5))


async def measure(fleet: Fleet, load: ClosedLoop, repeats: int, seed: int, noticed: float) -> list[Pauses]:
    """Inject single faults under load."""
    faults = await inject_each(fleet, repeats, seed)
    await asyncio.sleep(REST)  # gaps are counted when their requests have ended
    return pauses_of(faults, load.tally.all_gaps, noticed)
