"""Where the ranks of an engine meet to connect to each other."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What ranks must know to find each other; needed only while they join."""

    key: str
    """Random; part of the names of sockets on one host, and of names in the store."""
    store_host: str | None
    """Address of a ``torch.distributed.TCPStore``; None if none is needed."""
    store_port: int
    tensor_transport: str
    """How the ranks of a stage exchange tensors: shm (one host), gloo or nccl."""


@contextmanager
def open_rendezvous(host: str, tensor_transport: str, pipeline_parallel_size: int) -> Iterator[Rendezvous]:
    """Host the store, if needed, at any port of the address ``host`` alone, until the block ends."""
    key = secrets.token_hex(16)
    if pipeline_parallel_size == 1 and tensor_transport == "shm":
        yield Rendezvous(key, None, 0, tensor_transport)
        return
    from torch.distributed import TCPStore

    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
        )
    yield Rendezvous(key, host, port, tensor_transport)
    del store
