"""The TCP connections that this process has accepted, as the kernel knows them: gRPC neither says what came over a
connection nor closes one that is asked of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

_INFO = struct.Struct("=52xI64xQQ")
"""Of ``struct tcp_info``: ``tcpi_last_data_recv``, ``tcpi_bytes_acked`` and ``tcpi_bytes_received``; Linux has them
since 4.1."""
_MAPPED = "::ffff:"
"""Begins an IPv4 address as a socket for both kinds gives it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One of them."""

    peer: tuple[str, int]
    """Address and port of the other end."""
    descriptor: int
    inode: int
    """Of its socket: another connection from the same address and port has another."""
    received: int
    """Bytes that came over it so far."""
    taken: int
    """Bytes that the other end took of it so far."""
    quiet: float
    """Seconds since something came over it, or since it began."""


def peer_of(name: str) -> tuple[str, int] | None:
    """What gRPC calls ``ipv4:10.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``, without a scope; None for a unix socket's."""
    kind, _, rest = name.partition(":")
    address, _, port = unquote(rest).rpartition(":")
    host = address.strip("[]").partition("%")[0]
    return (host.removeprefix(_MAPPED), int(port)) if kind in ("ipv4", "ipv6") else None


def accepted(port: int) -> Iterator[Connection]:
    """Those that came to a port of this process."""
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        with contextlib.suppress(OSError), _same(descriptor) as one:
            family = one.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
            if family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
                continue
            quiet_ms, taken, received = _INFO.unpack(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
            inode = os.fstat(one.fileno()).st_ino
            yield Connection(_peer(one), descriptor, inode, received, taken, quiet_ms / 1000)


def close(connection: Connection) -> None:
    """Shut it down, and gRPC sees it end. Does nothing if it is over and its descriptor another's."""
    with contextlib.suppress(OSError), _same(connection.descriptor) as one:
        if os.fstat(one.fileno()).st_ino == connection.inode:
            one.shutdown(socket.SHUT_RDWR)


def _same(descriptor: int) -> socket.socket:
    """What a descriptor stands for, under one of our own, which stays when gRPC closes the other.

    Of any family (the one that is named has room for the addresses of both kinds). Raises ``OSError`` for no socket.
    """
    own = os.dup(descriptor)
    if not stat.S_ISSOCK(os.fstat(own).st_mode):
        os.close(own)
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=own)


def _peer(one: socket.socket) -> tuple[str, int]:
    """Raises ``OSError`` for one that listens."""
    host, port = one.getpeername()[:2]
    return host.removeprefix(_MAPPED), port
