"""Memory and processors by the operating system: what this process may use, what it uses, its peaks.

Linux, with or without control groups (v1 and v2), so that a container's limits count, not its host's.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

_POLL_SECONDS = 0.001
_ADDRESSES_OF_THREAD = 72 << 20
"""Address space of a thread: its stack, and the C allocator's arena for it. Little of it is ever used."""
_INSTRUCTION_SETS = ("avx", "amx", "fma", "f16c", "sse4", "asimd", "sve", "bf16", "i8mm")


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes this process can grow to, itself included: what the machine and every control group above it leave.

    ``root`` holds /proc and /sys.
    """
    own = _entries(root / "proc/self/status").get("RssAnon", 0)
    free = [_entries(root / "proc/meminfo")["MemAvailable"], *_free_in_cgroups(root)]
    return min(free) + own


def address_limit(root: Path = Path("/")) -> int | None:
    """Bytes of address space that this process may have (``ulimit -v``), used or not; None without a limit."""
    name = "Max address space"
    line = next((line for line in _lines(root / "proc/self/limits") if line.startswith(name)), name)
    soft = line.removeprefix(name).split()[:1]
    return int(soft[0]) if soft and soft[0].isdecimal() else None


def addressable_memory(root: Path = Path("/")) -> int | None:
    """Bytes this process can grow to, itself included, until its addresses are used up; None without a limit.

    Threads to come have room, too.
    """
    limit = address_limit(root)
    if limit is None:
        return None
    status = _entries(root / "proc/self/status")
    threads = (usable_cpus(root) + 2) * _ADDRESSES_OF_THREAD
    return max(0, limit - status["VmSize"] - threads + status["RssAnon"])


def resident_memory() -> int:
    """Bytes of physical memory this process holds."""
    return _entries(Path("/proc/self/status"))["VmRSS"]


def usable_cpus(root: Path = Path("/")) -> int:
    """Processors this process may keep busy: those it may run on, limited by its control groups' quotas."""
    return max(1, min([len(os.sched_getaffinity(0)), *_cpu_quotas(root)]))


def instruction_sets() -> list[str]:
    """Instruction sets by which matrix kernels are chosen, by Linux's names."""
    lines = _lines(Path("/proc/cpuinfo"))
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return sorted({flag for flag in flags.partition(":")[2].split() if flag.startswith(_INSTRUCTION_SETS)})


def trim() -> None:
    """Return freed memory to the system, so that the next measurement counts used memory. No-op without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class Peak:
    """The result of ``measure_peak``, complete when the block has ended."""

    growth: int = 0
    """Bytes from the start to the peak."""


@contextmanager
def measure_peak() -> Iterator[Peak]:
    """Measure how far this process grows while the block runs.

    Uses the kernel's high-water mark where the process may reset it; elsewhere a thread polls every millisecond,
    which misses shorter peaks.
    """
    peak = Peak()
    trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (proc_pid_clear_refs(5))
    except OSError:
        with _polled_peak(peak):
            yield peak
        return
    before = resident_memory()
    yield peak
    peak.growth = max(0, _entries(Path("/proc/self/status"))["VmHWM"] - before)


@contextmanager
def _polled_peak(peak: Peak) -> Iterator[None]:
    before, done = resident_memory(), threading.Event()

    def poll() -> None:
        while not done.is_set():
            peak.growth = max(peak.growth, resident_memory() - before)
            time.sleep(_POLL_SECONDS)

    thread = threading.Thread(target=poll, name="memory peak", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _free_in_cgroups(root: Path) -> Iterator[int]:
    """Bytes that each limited control group of this process leaves to it, reclaimable file cache included."""
    for group, unified in _control_groups(root, "memory"):
        limit = _number(group / ("memory.max" if unified else "memory.limit_in_bytes"))
        usage = _number(group / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit is not None and usage is not None:
            statistics = dict(line.split() for line in _lines(group / "memory.stat"))
            prefix = "" if unified else "total_"
            cache = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
            yield limit - usage + cache


def _cpu_quotas(root: Path) -> Iterator[int]:
    """The quota of each limited control group in processors, rounded up."""
    for group, unified in _control_groups(root, "cpu"):
        names = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for name in names for line in _lines(group / name)).split()
        if len(words) == 2 and all(word.isdecimal() for word in words):
            yield -(-int(words[0]) // int(words[1]))


def _control_groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Directories of this process's groups, and whether they are of the unified hierarchy (v2).

    From its own group upwards, as far as a container sees them.
    """
    cgroups = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        unified = hierarchy == "0"
        if not unified and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for mount in (cgroups, cgroups / "unified") if unified else (cgroups / controller,):
            for part in (group, *group.parents):
                yield mount / part, unified


def _number(path: Path) -> int | None:
    """The number in a file, if any (``max`` in cgroup v2 is no limit)."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _entries(path: Path) -> dict[str, int]:
    """Entries in kB of a file such as /proc/meminfo, in bytes."""
    fields = (line.split() for line in _lines(path))
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if len(field) == 3 and field[2] == "kB"}
