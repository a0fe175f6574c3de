"""Ranks on two hosts, which here are two network namespaces with a cable between them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import TCPStore

from engine_core.distributed.process_group import ProcessGroupCollectives
from engine_core.distributed.ranks import Rank
from engine_core.distributed.rendezvous import Rendezvous
from engine_core.errors import RankFailedError
from engine_core.kernels.library import KernelLibrary
from engine_core.worker import join as joining
from engine_core.worker.join import join
from tests.engine_core.distributed.test_process_group import ranks

CLONE_NEWNET = 0x40000000
PORT = 29555


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _can_make_hosts() -> bool:
    if shutil.which("ip") is None:
        return False
    name = f"ringline-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Their names; the first has address 10.213.7.1, the second 10.213.7.2."""
    if not _can_make_hosts():
        pytest.skip("needs network namespaces: root, and the command ip")
    names = [f"ringline-{os.getpid()}-{number}" for number in (1, 2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            _ip("-n", name, "address", "add", f"10.213.7.{number}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _enter(name: str) -> None:
    """Be on that host."""
    with Path(f"/run/netns/{name}").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def _told(pipe: Connection) -> object:
    assert pipe.poll(20)
    return pipe.recv()


def _meets(hosts: list[str], rank: int, size: int, _: TCPStore) -> list[object]:
    _enter(hosts[rank])
    joining._ANSWER_SECONDS = 2.0  # this process is a rank's alone
    address = f"10.213.7.{1 + rank}"
    seen: list[object] = []
    store = None
    if rank == 0:
        store = TCPStore(address, PORT, None, True, timedelta(seconds=10), wait_for_workers=False)
    met = Rendezvous("key", "10.213.7.1", PORT, "gloo")
    cpu = torch.device("cpu")
    _, links = join(met, Rank(pp=rank, pp_size=2), cpu, 2.0)
    tensors, _ = join(met, Rank(tp=rank, tp_size=2), cpu, 2.0)
    assert links is not None
    assert isinstance(tensors, ProcessGroupCollectives)
    if rank == 0:
        links.send(torch.arange(6.0).view(2, 3))
    else:
        seen.append(links.receive((2, 3), torch.float32).tolist())
    seen.append(tensors.all_gather(torch.full((1, 1 + rank), float(rank)), [1, 2]).tolist())
    if rank == 0:
        _ip("link", "set", "cable", "down")
    start = time.monotonic()
    try:
        tensors.barrier()
        tensors.barrier()
    except RankFailedError:
        seen.append(time.monotonic() - start < 8.0)
    del store
    return seen


def test_ranks_meet_over_a_network_and_miss_a_cut_cable(hosts: list[str]) -> None:
    """Rank 0 of two stages is on one host, rank 1 on the other; a group of two gathers, too."""
    with ranks(2, partial(_meets, hosts)) as (_, pipes):
        first, second = _told(pipes[0]), _told(pipes[1])
    assert first == [[[0.0, 1.0, 1.0]], True]
    assert second == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [[0.0, 1.0, 1.0]], True]


def test_shared_memory_is_used_by_the_kernels_that_the_worker_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --kernel-cache-dir they may be nowhere else."""
    path, kernels = "/a/directory/of/its/own", Mock()
    monkeypatch.setattr(joining, "load_kernels", lambda library: {path: kernels}[library._cache])
    joined = Mock()
    monkeypatch.setattr(joining.ShmCollectives, "join", joined)
    join(Rendezvous("key", None, 0, "shm"), Rank(1, 2), torch.device("cpu"), 1.0, KernelLibrary(path))
    joined.assert_called_once_with("key-0", 1, 2, 1.0, kernels)
