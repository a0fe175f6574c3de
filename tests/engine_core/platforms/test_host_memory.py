"""Memory and processor limits read from trees as Linux lays them out, and peaks of this very process."""

import os
import resource
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from engine_core.platforms import host_memory as host

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    defaults = {
        "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable:   {32 << 20} kB\nHugePages_Total:  0\n",
        "proc/self/status": f"Name:\tpython\nVmRSS:\t {3 << 20} kB\nRssAnon:\t {1 << 20} kB\n",
        "proc/self/cgroup": "0::/\n",
    }
    for name, text in {**defaults, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_without_limits_leaves_what_is_available(tmp_path: Path) -> None:
    assert host.usable_memory(tree(tmp_path, {})) == 33 * GIB


def test_v2_container_counts_usage_but_not_file_cache(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {2 * GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\n",
    }
    assert host.usable_memory(tree(tmp_path, files)) == int((8 - 5 + 1.5 + 1) * GIB)


@pytest.mark.parametrize("tight", ["", "/slice", "/slice/unit"])
def test_v2_the_tightest_group_on_the_way_up_counts(tmp_path: Path, tight: str) -> None:
    files = {"proc/self/cgroup": "0::/slice/unit\n"}
    for group in ("/slice", "/slice/unit", tight):
        limit = 6 * GIB if group == tight else "max"
        files[f"sys/fs/cgroup{group}/memory.max"] = f"{limit}\n"
        files[f"sys/fs/cgroup{group}/memory.current"] = f"{2 * GIB}\n"
    assert host.usable_memory(tree(tmp_path, files)) == 5 * GIB


def test_v1_counts_its_totals_and_ignores_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n1:name=systemd:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/a/b/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
    }
    assert host.usable_memory(tree(tmp_path, files)) == 3 * GIB


def test_v1_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/docker/0123\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    assert host.usable_memory(tree(tmp_path, files)) == 2 * GIB


def test_a_limit_of_the_address_space_leaves_what_is_not_mapped(tmp_path: Path) -> None:
    files = {
        "proc/self/limits": f"Limit  Soft  Hard  Units\nMax address space   {8 * GIB}   unlimited   bytes\n",
        "proc/self/status": f"VmSize:\t {5 << 20} kB\nVmRSS:\t {3 << 20} kB\nRssAnon:\t {1 << 20} kB\n",
        "sys/fs/cgroup/cpu.max": "100000 100000\n",
    }
    root = tree(tmp_path, files)
    assert host.address_limit(root) == 8 * GIB
    assert host.addressable_memory(root) == (8 - 5 + 1) * GIB - 3 * host._ADDRESSES_OF_THREAD


def test_more_address_space_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/limits": f"Max address space   {2 * GIB}   {2 * GIB}   bytes\n",
        "proc/self/status": f"VmSize:\t {5 << 20} kB\nRssAnon:\t 0 kB\n",
    }
    assert host.addressable_memory(tree(tmp_path, files)) == 0


@pytest.mark.parametrize("limits", ["", "Max address space   unlimited   unlimited   bytes\n"])
def test_addresses_without_a_limit(tmp_path: Path, limits: str) -> None:
    assert host.addressable_memory(tree(tmp_path, {"proc/self/limits": limits})) is None


def test_the_limit_of_this_process_is_that_of_the_system() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    assert host.address_limit() == (None if limit == resource.RLIM_INFINITY else limit)


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/cpu.max": "50000 100000\n"},
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/pod\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_a_quota_of_one_processor(tmp_path: Path, files: dict[str, str]) -> None:
    assert host.usable_cpus(tree(tmp_path, files)) == 1


def test_no_quota_leaves_the_processors_this_process_may_run_on(tmp_path: Path) -> None:
    assert host.usable_cpus(tree(tmp_path, {"sys/fs/cgroup/cpu.max": "max 100000\n"})) == len(os.sched_getaffinity(0))


def test_peak_of_memory_that_is_gone_when_the_block_ends() -> None:
    with host.measure_peak() as peak:
        np.ones(64 << 20, np.uint8)
        np.zeros(1 << 30, np.uint8)  # reserved, never touched: takes nothing
    assert 48 << 20 < peak.growth < 80 << 20  # the system may take pages of files back meanwhile


def test_peak_where_the_kernel_does_not_reset_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=PermissionError))
    with host.measure_peak() as peak:
        ballast = np.ones(64 << 20, np.uint8)
        end = time.monotonic() + 60
        while peak.growth < 48 << 20:
            assert time.monotonic() < end, "nobody looks"
            time.sleep(0.001)
        del ballast
    assert 48 << 20 < peak.growth < 90 << 20


def test_trim_gives_freed_memory_back() -> None:
    small = [bytes(1000) for _ in range(60_000)]
    held = host.resident_memory()
    keep = small[-1]  # the top of the heap stays in use, so freeing alone cannot shrink it
    del small
    host.trim()
    assert host.resident_memory() < held - (30 << 20)
    assert len(keep) == 1000
