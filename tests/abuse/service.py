"""Memory, descriptors, metrics and health of a service under attack."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from services.common.links.channels import Endpoint, check_health
from tests.processes import held_resources
from tests.ring import metric_values

MIB = 1 << 20
PROBE_PAUSE = 0.5
PROBE_LIMIT = 10.0
"""Seconds in which a service must answer a health check."""
SPARE_FDS, SPARE_THREADS = 8, 24
"""Allowed excess over the counts at rest: gRPC grows and shrinks its thread pools as it likes."""
KILL_ABOVE = 3 << 30
"""Resident bytes above which a service is killed, before it exhausts the machine."""
_SIZE_POLL = 0.05
_SERIES = {
    "open calls": "ringline_open_calls",
    "live requests": "ringline_live_requests",
    "waiting requests": "ringline_waiting_requests",
}


@dataclass
class Service:
    kind: str
    address: str
    pid: int
    metrics: str

    def resident(self) -> int:
        """Resident bytes."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """Most resident bytes since ``reset_peak``."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        with contextlib.suppress(OSError):
            return "State:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        return False

    async def kill_when_huge(self) -> None:
        """Kill the process when it exceeds ``KILL_ABOVE``."""
        while True:
            if self.alive and self.resident() > KILL_ABOVE:
                os.kill(self.pid, signal.SIGKILL)
            await asyncio.sleep(_SIZE_POLL)

    async def held(self) -> dict[str, int]:
        """Counts of what it holds, by resource."""
        process = Path(f"/proc/{self.pid}")
        found = {"fds": len(list((process / "fd").iterdir())), "threads": len(list((process / "task").iterdir()))}
        values = await asyncio.to_thread(metric_values, self.metrics)
        found |= {what: int(values[series]) for what, series in _SERIES.items() if series in values}
        if self.kind != "processor":
            try:
                held = vars(await held_resources(self.kind, self.address))
                found |= {what: count for what, count in held.items() if count}
            except grpc.aio.AioRpcError:
                found["refused load queries"] = 1
        return found

    def _status(self, name: str) -> int:
        """0 if the process has ended."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
        return 0


def excess_over(rest: dict[str, int], now: dict[str, int], *, connections: bool) -> dict[str, int]:
    """What ``now`` holds beyond ``rest``; ``connections``: whether descriptors count."""
    allowed = {what: rest.get(what, 0) for what in now}
    allowed["fds"] += SPARE_FDS
    allowed["threads"] += SPARE_THREADS
    return {
        what: count - rest.get(what, 0)
        for what, count in now.items()
        if count > allowed[what] and (connections or what != "fds")
    }


@dataclass
class Probe:
    """Checks a service's health over one connection, all the time."""

    service: Service
    slowest: float = 0.0
    """Seconds of the slowest answer since ``take_readings``."""
    failures: int = 0
    """Checks without an answer in time."""
    _channel: grpc.aio.Channel | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Probe:
        self._channel = Endpoint(self.service.address).open()
        await check_health(self._channel, seconds=PROBE_LIMIT)
        self._tasks = [asyncio.create_task(work) for work in (self._run(self._channel), self.service.kill_when_huge())]
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._channel is not None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def take_readings(self) -> tuple[float, int]:
        """Return and reset the slowest answer and the failures."""
        found = self.slowest, self.failures
        self.slowest, self.failures = 0.0, 0
        return found

    async def _run(self, channel: grpc.aio.Channel) -> None:
        while True:
            start = time.monotonic()
            said = await check_health(channel, seconds=PROBE_LIMIT)
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.failures += said == "UNREACHABLE"
            await asyncio.sleep(PROBE_PAUSE)
