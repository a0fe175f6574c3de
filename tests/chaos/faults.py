"""What goes wrong, and when. The schedule depends on the seed alone, so a seed replays it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos import ranks
from tests.chaos.fleet import Fleet
from tests.chaos.relay import Wire

SPARE = 5.0
"""Seconds before a process may be killed again, so that it can serve in between."""
RESTART_AFTER = 0.2
_SHARES = {"engine": 5, "detokenizer": 3, "processor": 2}
"""Weights of the services when a target is drawn."""


class Kind(StrEnum):
    KILL = "kill"
    HANG = "hang"
    CUT = "cut"
    DELAY = "delay"
    HOLD = "hold"
    DRAIN = "drain"
    RANK_KILL = "kill of a rank"
    RANK_STOP = "stop of a rank"
    RANK_CUT = "cut of a rank"


PER_MINUTE = {Kind.KILL: 12.0, Kind.HANG: 5.0, Kind.CUT: 8.0, Kind.DELAY: 4.0, Kind.HOLD: 2.0, Kind.DRAIN: 1.5}
"""Ten minutes have 120 kills and 50 hangs."""
OF_RANKS_PER_MINUTE = {Kind.RANK_KILL: 4.0, Kind.RANK_STOP: 3.0, Kind.RANK_CUT: 3.0}
"""Besides, where engines have several ranks."""
STOP_OF_A_RANK = 2.0
"""Seconds: it is not noticed while the engine starts."""


@dataclass(frozen=True)
class Fault:
    at: float
    """Seconds after the start of the schedule."""
    kind: Kind
    target: str
    """Name of a process, or of a wire: ``from>to``."""
    seconds: float = 0.0
    """Duration of a hang, delay or hold."""
    strength: float = 0.0
    """Seconds by which a delay holds back each byte."""


def schedule(seed: int, seconds: float, fleet: Fleet) -> list[Fault]:
    """Spread the faults of each kind evenly over ``seconds``."""
    random_ = random.Random(seed)
    faults = []
    for kind, rate in (PER_MINUTE | (OF_RANKS_PER_MINUTE if fleet.ranks else {})).items():
        count = round(rate * seconds / 60)
        faults += [(kind, (index + random_.random()) * seconds / count) for index in range(count)]
    faults.sort(key=lambda fault: fault[1])
    targets = _Targets(random_, fleet)
    return [targets.fault(kind, at) for kind, at in faults]


class _Targets:
    def __init__(self, random_: random.Random, fleet: Fleet) -> None:
        self._random = random_
        self._wires = sorted(fleet.wires)
        self._names = fleet.names
        self._ranked = sorted(fleet.ranks)
        self._died_at: dict[str, float] = {}

    def fault(self, kind: Kind, at: float) -> Fault:
        random_ = self._random
        match kind:
            case Kind.KILL | Kind.DRAIN:
                target = self._process(at)
                self._died_at[target] = at
                return Fault(at, kind, target)
            case Kind.HANG:
                # Shorter and longer than the 2 s after which a peer is suspected, and the 15 s of keepalive.
                longest = random_.choice([1.5, 1.5, 4.0, 6.0, 6.0, 18.0])
                return Fault(at, kind, self._process(at), random_.uniform(longest / 3, longest))
            case Kind.CUT:
                return Fault(at, kind, random_.choice(self._wires))
            case Kind.DELAY:
                return Fault(at, kind, random_.choice(self._wires), random_.uniform(1, 5), random_.uniform(0.02, 0.5))
            case Kind.HOLD:
                return Fault(at, kind, random_.choice(self._wires), random_.choice([1.0, 4.0, 18.0]))
            case Kind.RANK_KILL | Kind.RANK_STOP | Kind.RANK_CUT:
                return Fault(at, kind, random_.choice(self._ranked), STOP_OF_A_RANK)

    def _process(self, at: float) -> str:
        (kind,) = self._random.choices(list(_SHARES), list(_SHARES.values()))
        names = self._names[kind]
        rested = [name for name in names if at - self._died_at.get(name, -SPARE) >= SPARE]
        return self._random.choice(rested or names)


class Injector:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.done: Counter[str] = Counter()
        """Injected faults by kind, and by kind and service."""

    async def run(self, faults: list[Fault]) -> None:
        """Inject ``faults`` on time; return when the last one is over."""
        start = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                await asyncio.sleep(max(0.0, start + fault.at - asyncio.get_running_loop().time()))
                tasks.create_task(self.inject(fault))

    async def inject(self, fault: Fault) -> None:
        self.done[fault.kind] += 1
        if (wire := self._fleet.wires.get(fault.target)) is not None:
            await self._disturb(wire, fault)
            return
        process = self._fleet.processes[fault.target]
        self.done[f"{fault.kind} {process.kind}"] += 1
        match fault.kind:
            case Kind.KILL:
                process.kill()
                await asyncio.sleep(RESTART_AFTER)
                process.start()
            case Kind.DRAIN:
                await process.drain()
                process.start()
            case Kind.HANG:
                await process.hang(fault.seconds)
            case Kind.RANK_KILL:
                ranks.kill_one(process)
            case Kind.RANK_STOP:
                await ranks.stop_one(process, fault.seconds)
            case Kind.RANK_CUT:
                ranks.cut_one(process)

    async def _disturb(self, wire: Wire, fault: Fault) -> None:
        match fault.kind:
            case Kind.CUT:
                wire.cut()
                return
            case Kind.DELAY:
                wire.delay = fault.strength
            case Kind.HOLD:
                wire.hold()
        await asyncio.sleep(fault.seconds)
        wire.release()
