"""What a client sees of one fault while nothing else goes wrong; and what computing anew costs, to compare it with."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ringline import AsyncClient

from tests.chaos.faults import RESTART_AFTER, Kind
from tests.chaos.fleet import Fleet
from tests.chaos.load import Load
from tests.chaos.outcome import Gap
from tests.chaos.report import Pauses, Prefill, quantile

SERVICES = ("engine", "detokenizer", "processor")
KINDS = (Kind.KILL, Kind.HANG, Kind.CUT)
HANG = 4.0
"""Seconds: longer than the 2 s after which a peer is suspected."""
REST = 2.0
"""Seconds after a fault until the next, so that everything is joined again."""
_DIALLED_BY = {"engine": "processor", "detokenizer": "processor", "processor": "client"}
"""Whose links are cut."""
LAG = 0.5
"""Seconds after a fault in which a client may still be given what was on its way."""
_PREFILLS = 8
_VOCABULARY = 1000


@dataclass(frozen=True)
class Strike:
    """A fault that was alone."""

    service: str
    kind: Kind
    at: float
    """On the monotonic clock."""


async def strike_each(fleet: Fleet, repeats: int, seed: int) -> list[Strike]:
    """Kill, stop and cut off one process of each service at a time, ``repeats`` times each, and let it come back."""
    random_ = random.Random(seed)
    strikes = []
    for _ in range(repeats):
        for service in SERVICES:
            for kind in KINDS:
                name = random_.choice(fleet.names[service])
                strikes.append(Strike(service, kind, time.monotonic()))
                await _strike(fleet, name, kind)
                await fleet.wait_serving(name)
                await asyncio.sleep(REST)
    return strikes


async def _strike(fleet: Fleet, name: str, kind: Kind) -> None:
    process = fleet.processes[name]
    match kind:
        case Kind.KILL:
            process.kill()
            await asyncio.sleep(RESTART_AFTER)
            process.start()
        case Kind.HANG:
            await process.hang(HANG)
        case _:
            for wire in fleet.wires.values():
                if wire.name.startswith(_DIALLED_BY[process.kind]) and wire.name.endswith(f">{name}"):
                    wire.cut()


def pauses_of(strikes: Iterable[Strike], gaps: Iterable[Gap], noticed: float) -> list[Pauses]:
    """By service and kind, the gaps that a fault made, of requests that noticed it.

    Those did that were told so, or whose gap is longer than ``noticed`` seconds.
    """
    found: dict[tuple[str, Kind], Pauses] = {}
    there = [gap for gap in gaps if gap.told or gap.seconds > noticed]
    for strike in strikes:
        pauses = found.setdefault((strike.service, strike.kind), Pauses(strike.service, strike.kind))
        pauses.faults += 1
        pauses.seconds += [gap.seconds for gap in there if gap.begun - LAG <= strike.at < gap.ended]
    return list(found.values())


async def prefill_cost(client: AsyncClient, tokens: int, seed: int) -> Prefill:
    """The median time to the first token of a prompt of ``tokens`` on an idle ring: new, and with its prefix cached."""
    random_ = random.Random(seed)
    cold: list[float] = []
    cached: list[float] = []
    for _ in range(_PREFILLS):
        ids = random_.choices(range(3, _VOCABULARY), k=tokens)
        for times in (cold, cached):
            begun = time.monotonic()
            await client.generate(token_ids=ids, max_tokens=1, ignore_eos=True, temperature=0.0)
            times.append(time.monotonic() - begun)
    return Prefill(tokens, quantile(cold, 0.5), quantile(cached, 0.5))


async def measure(fleet: Fleet, load: Load, repeats: int, seed: int, noticed: float) -> list[Pauses]:
    """Strike under load; the gaps of this phase alone are looked at."""
    strikes = await strike_each(fleet, repeats, seed)
    await asyncio.sleep(REST)  # for what still runs: gaps are counted when their requests have ended
    return pauses_of(strikes, load.tally.all_gaps, noticed)
