"""The TCP connections that this process has accepted, as the kernel knows them, and a guard that keeps places free
among them: gRPC neither says what came over a connection nor closes one that is asked of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
import struct
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from urllib.parse import unquote

import structlog

from services.telemetry.logs import RateLimitedLog

_INFO = struct.Struct("=52xI64xQQ")
"""Of ``struct tcp_info``: ``tcpi_last_data_recv``, ``tcpi_bytes_acked`` and ``tcpi_bytes_received``; Linux has them
since 4.1."""
_MAPPED = "::ffff:"
"""Begins an IPv4 address as a socket for both kinds gives it."""
log = structlog.get_logger(__name__)
_INTERVAL = 0.1
"""Seconds between looks; they are cheap while there is room."""
_REST = 4
"""Times as long as a look took is it rested afterwards, at least."""
_SHORT, _ENOUGH = 4, 2
"""Of all places, the part that is kept free, and the part that is free afterwards."""
_OTHER_DESCRIPTORS = 256
"""Of the process, for files, links and answers to scrapes."""


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


def most_connections(wanted: int) -> int:
    """As many connections as the system lets this process have, at most ``wanted``.

    Raises the process's limit of open files if that is necessary and allowed.
    """
    soft, hard = (
        limit if limit != resource.RLIM_INFINITY else sys.maxsize
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    needed = wanted + _OTHER_DESCRIPTORS
    if soft >= needed:
        return wanted
    soft = min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if soft == needed:
        return wanted
    allowed = max(1, soft - _OTHER_DESCRIPTORS)
    log.warning("fewer connections than --max-connections: the system allows too few files", connections=allowed)
    return allowed


class ConnectionGuard:
    """Watches the connections to one port of this process, from ``start`` to ``stop``."""

    def __init__(self, port: int, max_connections: int, is_busy: Callable[[str, int], bool]) -> None:
        """``is_busy``: whether a connection, by address and port of its other end, has calls. Any thread may ask."""
        self._port = port
        self._most = max_connections - max_connections // _SHORT
        self._enough = max_connections - max_connections // _ENOUGH
        self._is_busy = is_busy
        self._closed = RateLimitedLog(log, "connections are short: closed some without calls")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="connection guard", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _watch(self) -> None:
        took = 0.0
        while not self._stop.wait(max(_INTERVAL, _REST * took)):
            began = time.thread_time()  # not what passes while the event loop computes
            try:
                if len(os.listdir("/proc/self/fd")) > self._most:  # noqa: PTH208 - a Path of each would cost more
                    self.look()
            except OSError:  # when no descriptor is left, the next look may find one
                pass
            except Exception:
                log.exception("the connection guard failed")
            took = time.thread_time() - began

    def look(self) -> None:
        """Do what is necessary now."""
        connections = list(accepted(self._port))
        if len(connections) <= self._most:
            return
        for connection in self._superfluous(connections):
            close(connection)
            self._closed.tell(client=connection.peer[0])

    def _superfluous(self, connections: list[Connection]) -> list[Connection]:
        """Those to be closed: one by one, the quietest without calls of whoever has most connections yet.

        (Over one that has just been made, or on which a call is on its way, something came just now.)
        """
        counts = Counter(connection.peer[0] for connection in connections)
        idle: dict[str, list[Connection]] = defaultdict(list)
        for connection in sorted(connections, key=lambda one: one.quiet):
            if not self._is_busy(*connection.peer):
                idle[connection.peer[0]].append(connection)
        heaviest = [(-counts[host], -ones[-1].quiet, host) for host, ones in idle.items()]
        heapify(heaviest)
        chosen: list[Connection] = []
        while heaviest and len(connections) - len(chosen) > self._enough:
            negated, _, host = heappop(heaviest)
            chosen.append(idle[host].pop())
            if idle[host]:
                heappush(heaviest, (negated + 1, -idle[host][-1].quiet, host))
        return chosen
