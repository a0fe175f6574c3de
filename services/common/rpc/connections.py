"""The TCP connections that this process has accepted, with the kernel's counters, and the limit on their number.

gRPC neither reports what a connection received nor closes one on request, so both are done on its sockets.
"""

from __future__ import annotations

import contextlib
import errno
import math
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

from services.common.telemetry.logs import RateLimitedLog

_INFO = struct.Struct("=52xI64xQQ")
"""Reads from ``struct tcp_info``: ``tcpi_last_data_recv``, ``tcpi_bytes_acked`` and ``tcpi_bytes_received``; Linux 4.1
or later."""
_MAPPED = "::ffff:"
"""Prefix of an IPv4 address on a dual-stack socket."""
_INTERVAL = 0.1
"""Seconds between checks; they are cheap while there is room."""
_REST_FACTOR = 4
"""The pause after a check is at least this many times its CPU time."""
_HIGH_WATER, _LOW_WATER = 0.75, 0.5
"""Shares of the limit: above the high one, connections are closed until the low one is reached."""
_OTHER_DESCRIPTORS = 256
"""File descriptors that the process needs for files, links and answers to scrapes."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """One accepted connection."""

    peer: tuple[str, int]
    """Address and port of the other end."""
    descriptor: int
    inode: int
    """Inode of the socket; distinguishes successive connections from the same address and port."""
    bytes_received: int
    bytes_acked: int
    """Bytes sent that the other end has acknowledged."""
    quiet_seconds: float
    """Seconds since data last arrived, or since the connection began."""


def parse_peer(name: str) -> tuple[str, int] | None:
    """Address and port of gRPC's ``ipv4:10.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``; None for a unix socket."""
    kind, _, rest = name.partition(":")
    address, _, port = unquote(rest).rpartition(":")
    host = address.strip("[]").partition("%")[0]
    return (host.removeprefix(_MAPPED), int(port)) if kind in ("ipv4", "ipv6") else None


def accepted_connections(port: int) -> Iterator[AcceptedConnection]:
    """The open connections to a port of this process."""
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        with contextlib.suppress(OSError), _same(descriptor) as one:
            family = one.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
            if family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
                continue
            quiet_ms, taken, received = _INFO.unpack(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
            host, other_port = one.getpeername()[:2]  # raises OSError for a listening socket
            peer, inode = (host.removeprefix(_MAPPED), other_port), os.fstat(one.fileno()).st_ino
            yield AcceptedConnection(peer, descriptor, inode, received, taken, quiet_ms / 1000)


def close_connection(connection: AcceptedConnection) -> None:
    """Shut the connection down, so that gRPC sees its end. Does nothing if its descriptor was reused meanwhile."""
    with contextlib.suppress(OSError), _same(connection.descriptor) as one:
        if os.fstat(one.fileno()).st_ino == connection.inode:
            one.shutdown(socket.SHUT_RDWR)


def _same(descriptor: int) -> socket.socket:
    """A duplicate of a socket's descriptor: gRPC may close its own meanwhile. Raises ``OSError`` if it is no socket.

    Works for every family: AF_INET6 has room for the addresses of both.
    """
    own = os.dup(descriptor)
    if not stat.S_ISSOCK(os.fstat(own).st_mode):
        os.close(own)
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=own)


def allowed_connections(wanted: int) -> int:
    """Raise the limit on open files if possible, and return how many connections it allows, at most ``wanted``."""
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
    """Keeps a quarter of the allowed connections free, from ``start`` to ``stop``.

    When fewer are free, it closes connections without calls, beginning with the clients that have the most.
    """

    def __init__(self, port: int, max_connections: int, has_calls: Callable[[str, int], bool]) -> None:
        """``has_calls``: whether the connection from an address and port has calls; called in another thread."""
        self._port = port
        self._high_water = math.ceil(max_connections * _HIGH_WATER)
        self._low_water = math.ceil(max_connections * _LOW_WATER)
        self._has_calls = has_calls
        self._closed = RateLimitedLog(log, "connections are short: closed some without calls")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="connection guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _watch(self) -> None:
        took = 0.0
        while not self._stop.wait(max(_INTERVAL, _REST_FACTOR * took)):
            began = time.thread_time()  # CPU time of this thread; wall time would include waits for the event loop
            try:
                if len(os.listdir("/proc/self/fd")) > self._high_water:  # noqa: PTH208 - a Path of each would cost more
                    self.check()
            except OSError:  # no descriptor is free now; the next check may find one
                pass
            except Exception:
                log.exception("the connection guard failed")
            took = time.thread_time() - began

    def check(self) -> None:
        """Close connections if there are too many."""
        connections = list(accepted_connections(self._port))
        if len(connections) <= self._high_water:
            return
        for connection in self.idle_of_heaviest(connections):
            close_connection(connection)
            self._closed.write(client=connection.peer[0])

    def idle_of_heaviest(self, connections: list[AcceptedConnection]) -> list[AcceptedConnection]:
        """The connections to close, in order: always the quietest without calls, of the client with the most left.

        A new connection, or one whose call is on its way, is not among the quietest.
        """
        counts = Counter(connection.peer[0] for connection in connections)
        idle: dict[str, list[AcceptedConnection]] = defaultdict(list)
        for connection in sorted(connections, key=lambda one: one.quiet_seconds):
            if not self._has_calls(*connection.peer):
                idle[connection.peer[0]].append(connection)
        heaviest = [(-counts[host], -ones[-1].quiet_seconds, host) for host, ones in idle.items()]
        heapify(heaviest)
        chosen: list[AcceptedConnection] = []
        while heaviest and len(connections) - len(chosen) > self._low_water:
            negated, _, host = heappop(heaviest)
            chosen.append(idle[host].pop())
            if idle[host]:
                heappush(heaviest, (negated + 1, -idle[host][-1].quiet_seconds, host))
        return chosen
