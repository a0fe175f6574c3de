"""Memory and CPU time of processes, as the kernel counts them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


class Watch:
    """Samples memory and CPU time of processes every second. An async context manager."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """``pids``: process ids keyed by name."""
        self._pids = pids
        self._cpu = {name: cpu_seconds(pid) for name, pid in pids.items()}
        self.begun = time.perf_counter()
        self.times: list[float] = []
        """Seconds from the start to each sample."""
        self.resident: dict[str, list[int]] = {name: [] for name in pids}
        """Bytes at each of these times."""
        self.cpu_share: dict[str, float] = {}
        """Average CPU use of each process, as a share of one core; set at the end."""

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        seconds = time.perf_counter() - self.begun
        self.cpu_share = {name: (cpu_seconds(pid) - self._cpu[name]) / seconds for name, pid in self._pids.items()}

    async def _look(self) -> None:
        while True:
            self.times.append(time.perf_counter() - self.begun)
            for name, pid in self._pids.items():
                self.resident[name].append(resident_bytes(pid))
            await asyncio.sleep(1)
