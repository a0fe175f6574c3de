"""A client's servers and connections: round-robin, with failing servers ejected for a while."""

from __future__ import annotations

import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc

from ringline.connect_errors import connection_failure, not_reached
from ringline.errors import Cancelled, DeadlineExceeded, RingError, Unavailable

_Connection = TypeVar("_Connection")
_Call = TypeVar("_Call")

_FIRST_EJECTION, _LONGEST_EJECTION = 0.5, 10.0
"""Seconds."""
_CLOSED = "the client is closed"
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:", "xds:", "google-c2p:")
"""Target schemes that are passed to gRPC unchanged."""
_HOST_AND_PORT = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+(?:%[\w.~-]+)?\]):([0-9]{1,5})", re.ASCII)


def split_addresses(address: str | Sequence[str], name: str = "address") -> list[str]:
    """The gRPC targets in a list or a comma-separated string. Raises ValueError if one is invalid or there is none.

    ``ipv4:`` and ``ipv6:`` targets may contain commas themselves and are not split. ``name``: what errors call it.
    """
    if isinstance(address, str):
        address = [address] if address.startswith(("ipv4:", "ipv6:")) else address.split(",")
    addresses = [one.strip() for one in address]
    if not addresses or not all(addresses):
        raise ValueError(f"{name}: expected host:port, or several with commas between them, got {address!r}")
    for one in addresses:
        if not (one.startswith(_SCHEMES) or _is_host_and_port(one)):
            raise ValueError(f"{name}: expected host:port, [v6]:port or unix:path, got {one!r}")
    return list(dict.fromkeys(addresses))


def _is_host_and_port(address: str) -> bool:
    """Checked here because gRPC takes ports modulo 65536 and defaults to port 443."""
    match = _HOST_AND_PORT.fullmatch(address)
    return match is not None and 1 <= int(match[1]) <= 65535


@dataclass(slots=True, eq=False)
class PooledConnection(Generic[_Connection]):
    """A connection and its users; it is closed only when idle."""

    connection: _Connection
    users: int = 0
    """Threads or tasks inside ``ServerPool.using``."""
    calls: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Streams that outlive ``using``. Weak: gRPC cancels a stream that is garbage collected."""

    def keep(self, call: _Call) -> _Call:
        """Keep the connection open while ``call`` exists; returns ``call``."""
        self.calls.add(call)
        return call

    @property
    def idle(self) -> bool:
        """Whether it can be closed without ending a call."""
        return not self.users and not self.calls


@dataclass(slots=True, eq=False)
class Server(Generic[_Connection]):
    """One address: its connection and its recent health."""

    address: str
    current: PooledConnection[_Connection]
    stamp: object = None
    """Version of the TLS files that ``current`` was made with."""
    retired: list[PooledConnection[_Connection]] = field(default_factory=list)
    """Earlier connections that still have calls."""
    ejection_seconds: float = 0.0
    """Length of the last ejection; 0 after a success."""
    ejected_until: float = 0.0
    """On the monotonic clock."""
    refused_at: float = 0.0
    """When the last attempt to connect failed, on the monotonic clock; 0 if none has."""
    refusal: str = ""
    """Why that attempt failed."""

    @property
    def ejected(self) -> bool:
        """Whether it failed recently: it is chosen only if all are ejected."""
        return self.ejected_until > time.monotonic()


class ServerPool(Generic[_Connection]):
    """The servers of one client; thread-safe. Each client starts at a random one, to spread the load."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Callable[[str], _Connection],
        *,
        stamp: Callable[[], object] = lambda: None,
        close: Callable[[_Connection], None] = lambda _: None,
    ) -> None:
        """``stamp``: its value changes with the files that ``connect`` reads.

        New calls then get a new connection. The old one keeps its calls; the first new call after they end closes it.
        """
        self._connect = connect
        self._stamp = stamp
        self._close = close
        now = stamp()
        self._pool = [Server(address, PooledConnection(connect(address)), now) for address in addresses]
        self._next = random.randrange(len(addresses))
        self._lock = threading.Lock()
        self.reached = False
        """Whether any server has ever answered."""
        self.closed = False
        """Set when the client is closed: no connection is made afterwards."""

    def connections(self) -> list[_Connection]:
        """All connections, retired ones included."""
        with self._lock:
            return [used.connection for server in self._pool for used in (server.current, *server.retired)]

    def choose(self, avoid: Server[_Connection] | None = None) -> Server[_Connection]:
        """The next server in turn that is not ejected, else the one whose ejection ends first; ``avoid`` loses ties.

        Until a server is reached: the next untried server, else the one tried longest ago.
        """
        with self._lock:
            now = time.monotonic()
            turns = [(self._next + step) % len(self._pool) for step in range(len(self._pool))]
            servers = self._pool

            def rank(turn: int) -> tuple[float, bool]:
                server = servers[turn]
                wait = max(0.0, server.ejected_until - now) if self.reached else server.refused_at
                return wait, server is avoid

            index = min(turns, key=rank)
            self._next = (index + 1) % len(self._pool)
            self._renew(self._pool[index])
            return self._pool[index]

    @contextmanager
    def using(self, server: Server[_Connection]) -> Iterator[PooledConnection[_Connection]]:
        """The server's connection, kept open inside the block and while calls passed to its ``keep`` exist.

        Raises Cancelled if the client is closed, before or meanwhile, in place of gRPC's own errors.
        """
        with self._lock:
            if self.closed:
                raise Cancelled(_CLOSED)
            used = server.current
            used.users += 1
        try:
            yield used
        except (ValueError, grpc.aio.UsageError):
            if self.closed:
                raise Cancelled(_CLOSED) from None
            raise
        finally:
            with self._lock:
                used.users -= 1

    def failed(self, server: Server[_Connection]) -> None:
        """Eject a server that was unreachable or lost, or refuses new requests; the time doubles with each failure."""
        with self._lock:
            if not server.ejected:  # one failure that ends many requests counts once
                server.ejection_seconds = min(max(2 * server.ejection_seconds, _FIRST_EJECTION), _LONGEST_EJECTION)
                server.ejected_until = time.monotonic() + server.ejection_seconds

    def attempt_failed(self, server: Server[_Connection], error: RingError, began: float) -> RingError:
        """Record what an error says about the server; returns the error to raise if the request is not retried.

        ``began``: when the request began, on the monotonic clock.
        """
        if isinstance(error, Unavailable):
            self.failed(server)
        reason = connection_failure(error)
        if reason is None:
            self.reached = self.reached or not isinstance(error, Cancelled | DeadlineExceeded)
            return error
        server.refused_at, server.refusal = time.monotonic(), reason
        if not self.reached and all(each.refused_at >= began for each in self._pool):
            return not_reached({each.address: each.refusal for each in self._pool})
        unavailable = Unavailable(f"{server.address} is not available: {reason}")
        unavailable.partial = error.partial
        return unavailable

    def succeeded(self, server: Server[_Connection]) -> None:
        """The server admitted a request: end its ejection."""
        self.reached = True
        server.ejection_seconds = server.ejected_until = 0.0

    @property
    def any_available(self) -> bool:
        """Whether some server is not ejected, so that a retry needs no delay."""
        return self.any_available_but(None)

    def any_available_but(self, avoid: Server[_Connection] | None) -> bool:
        """Whether some server other than ``avoid`` is not ejected."""
        return not all(server.ejected for server in self._pool if server is not avoid)

    def _renew(self, server: Server[_Connection]) -> None:
        """Close idle retired connections. Reconnect if the files have changed and can be read."""
        if self.closed:
            return
        for used in [used for used in server.retired if used.idle]:
            server.retired.remove(used)
            self._close(used.connection)
        now = self._stamp()
        if now == server.stamp:
            return
        try:
            connection = self._connect(server.address)
        except RingError:
            return
        server.retired.append(server.current)
        server.current, server.stamp = PooledConnection(connection), now
