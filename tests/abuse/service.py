"""A service under attack as its operating system and its metrics show it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from services.peers.channels import check_health, open_channel
from tests.chaos.fleet import held

MIB = 1 << 20
PROBE_PAUSE = 0.5
PROBE_LIMIT = 10.0
"""Seconds in which a service must say how it is, whatever is done to it."""
SPARE_FDS, SPARE_THREADS = 8, 24
"""More than at rest that a service may keep: gRPC's pools of threads grow, and shrink when they like."""
FUSE = 3 << 30
"""Bytes with which a service is killed, before it takes the machine's memory from everything else."""
_FUSE_PAUSE = 0.05
_SERIES = {
    "open calls": "ringline_open_calls",
    "live requests": "ringline_live_requests",
    "waiting requests": "ringline_waiting_requests",
}


@dataclass
class Service:
    """One process."""

    kind: str
    address: str
    pid: int
    metrics: str

    def resident(self) -> int:
        """Bytes that it has in memory."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """The most since ``reset_peak``."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        """Look for the peak from now on."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def alive(self) -> bool:
        """Whether it is still the process that it was."""
        with contextlib.suppress(OSError):
            return "State:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        return False

    async def watch_fuse(self) -> None:
        """Kill it when it takes so much that the machine would suffer."""
        while True:
            if self.alive and self.resident() > FUSE:
                os.kill(self.pid, signal.SIGKILL)
            await asyncio.sleep(_FUSE_PAUSE)

    async def holds(self) -> dict[str, int]:
        """What it holds now, by kind; only what is more than nothing."""
        found = {"fds": _count(f"/proc/{self.pid}/fd"), "threads": _count(f"/proc/{self.pid}/task")}
        found |= await asyncio.to_thread(self._series)
        if self.kind != "processor":
            try:
                found |= {what: count for what, count in vars(await held(self.kind, self.address)).items() if count}
            except grpc.aio.AioRpcError:
                found["refused questions"] = 1
        return found

    def _series(self) -> dict[str, int]:
        with urllib.request.urlopen(self.metrics, timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        values = {sample.name: sample.value for family in families for sample in family.samples}
        return {what: int(values[series]) for what, series in _SERIES.items() if series in values}

    def _status(self, name: str) -> int:
        """Of a process that has ended, 0."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
        return 0


def more_than(rest: dict[str, int], now: dict[str, int], *, connections: bool) -> dict[str, int]:
    """What is held beyond what was held at rest; ``connections``: whether these count, too."""
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
    """Asks a service for its health, over one connection, all the time."""

    service: Service
    slowest: float = 0.0
    """Seconds that an answer took since it was last asked for."""
    failures: int = 0
    """Answers that did not come within the limit."""
    _channel: grpc.aio.Channel | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Probe:
        self._channel = open_channel(self.service.address)
        await check_health(self._channel, seconds=PROBE_LIMIT)
        self._tasks = [asyncio.create_task(work) for work in (self._run(self._channel), self.service.watch_fuse())]
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._channel is not None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def taken(self) -> tuple[float, int]:
        """The slowest answer and the failures so far; counts anew."""
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


def _count(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())
