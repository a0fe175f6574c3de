"""How a worker connects to the other ranks of its engine."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
from torch.distributed import TCPStore

from engine_core.distributed.collectives import StageLinks, TensorCollectives
from engine_core.distributed.process_group import (
    Group,
    ProcessGroupCollectives,
    ProcessGroupLinks,
    gloo_group,
    nccl_group,
)
from engine_core.distributed.ranks import Rank
from engine_core.distributed.rendezvous import Rendezvous
from engine_core.distributed.shm import ShmCollectives
from engine_core.errors import RankFailedError
from engine_core.kernels.library import KernelLibrary, load_kernels

_ANSWER_SECONDS = 3600.0
"""Timeout for another rank's answer, longer than any step: the executor notices sooner if one hangs or never joins."""


def join(
    rendezvous: Rendezvous, rank: Rank, device: torch.device, timeout: float, library: KernelLibrary | None = None
) -> tuple[TensorCollectives | None, StageLinks | None]:
    """The collectives of this rank's stage and the links to the neighbouring stages; None without other ranks there.

    ``timeout``: seconds for the others to join. ``library``: native kernels for shared memory; None: the default.
    Raises ``RankFailedError``.
    """
    collectives: TensorCollectives | None = None
    links: StageLinks | None = None
    if rank.tp_size > 1 and rendezvous.tensor_transport == "shm":
        key = f"{rendezvous.key}-{rank.pp}"
        collectives = ShmCollectives.join(key, rank.tp, rank.tp_size, timeout, load_kernels(library=library))
    elif rank.tp_size > 1:
        group = _group(rendezvous, f"stage {rank.pp}", rank.tp, rank.tp_size, timeout)
        collectives = ProcessGroupCollectives(group, _ANSWER_SECONDS)
    if rank.pp_size > 1:
        group = _group(rendezvous, f"links {rank.tp}", rank.pp, rank.pp_size, timeout)
        links = ProcessGroupLinks(group, device)
    return collectives, links


def _group(rendezvous: Rendezvous, name: str, rank: int, size: int, timeout: float) -> Group:
    host, port = rendezvous.store_host, rendezvous.store_port
    assert host is not None
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)
        own = _address_towards(host, port)
    except (RuntimeError, OSError) as error:
        raise RankFailedError(f"the engine's meeting point at {host}:{port} does not answer: {error}") from error
    name = f"{rendezvous.key} {name}"
    if rendezvous.tensor_transport == "nccl":
        return nccl_group(store, name, rank, size, _ANSWER_SECONDS)
    return gloo_group(store, name, rank, size, own, _ANSWER_SECONDS)


def _address_towards(host: str, port: int) -> str:
    """An address of this host on the route to ``host``, where the other ranks are, too. Nothing is sent."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, port))
        return str(way.getsockname()[0])
