"""Which of several servers is asked next: in turns, those last where a call failed a short while ago."""

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

from ringline.errors import RingError

_Connection = TypeVar("_Connection")
_Call = TypeVar("_Call")

_FIRST_PENALTY = 0.5
_LONGEST_PENALTY = 10.0


_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:", "xds:", "google-c2p:")
"""Of gRPC's own names for targets, which are for gRPC to read."""
_HOST_AND_PORT = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+(?:%[\w.~-]+)?\]):([0-9]{1,5})", re.ASCII)


def split_addresses(address: str | Sequence[str]) -> list[str]:
    """The gRPC targets in a list, or in a string with commas; raise ValueError if there is none, or one is not.

    ``ipv4:`` and ``ipv6:`` targets may have commas of their own, and are not split.
    """
    if isinstance(address, str):
        address = [address] if address.startswith(("ipv4:", "ipv6:")) else address.split(",")
    addresses = [one.strip() for one in address]
    if not addresses or not all(addresses):
        raise ValueError(f"address: expected host:port, or several with commas between them, got {address!r}")
    for one in addresses:
        if not (one.startswith(_SCHEMES) or _is_host_and_port(one)):
            raise ValueError(f"address: expected host:port, [v6]:port or unix:path, got {one!r}")
    return list(dict.fromkeys(addresses))


def _is_host_and_port(address: str) -> bool:
    """Looked at here, because gRPC takes ports modulo 65536, and without one dials 443."""
    match = _HOST_AND_PORT.fullmatch(address)
    return match is not None and 1 <= int(match[1]) <= 65535


@dataclass(slots=True, eq=False)
class Used(Generic[_Connection]):
    """A connection, and what keeps it from being closed."""

    connection: _Connection
    users: int = 0
    """Who has it in hand, to begin a call or until one returns."""
    calls: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Streams, as long as somebody holds them: gRPC cancels one that nobody holds."""

    def keep(self, call: _Call) -> _Call:
        """``call`` goes on when whoever began it no longer has the connection in hand."""
        self.calls.add(call)
        return call

    @property
    def idle(self) -> bool:
        """Whether closing it ends no call."""
        return not self.users and not self.calls


@dataclass(slots=True, eq=False)
class Server(Generic[_Connection]):
    """One address, and how it did lately."""

    address: str
    used: Used[_Connection]
    stamp: object = None
    """Of the files that the connection was made with."""
    retired: list[Used[_Connection]] = field(default_factory=list)
    """Those before that still have calls."""
    penalty: float = 0.0
    """Seconds it is asked last for after its next failure; 0 as long as it works."""
    avoided_until: float = 0.0
    """On the monotonic clock."""

    @property
    def avoided(self) -> bool:
        """Whether a call failed a short while ago."""
        return self.avoided_until > time.monotonic()


class Servers(Generic[_Connection]):
    """The servers of one client; safe to use from many threads. Clients begin at a random one, to spread over them."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Callable[[str], _Connection],
        *,
        stamp: Callable[[], object] = lambda: None,
        close: Callable[[_Connection], None] = lambda _: None,
    ) -> None:
        """``stamp`` changes when the files do that ``connect`` reads.

        New calls then get a new connection. That before keeps those that it has; it is closed when a call begins
        after the last of them has ended.
        """
        self._connect = connect
        self._stamp = stamp
        self._close = close
        now = stamp()
        self._servers = [Server(address, Used(connect(address)), now) for address in addresses]
        self._next = random.randrange(len(addresses))
        self._lock = threading.Lock()
        self.closed = False
        """Whether their client is: nothing is asked any more."""

    def connections(self) -> list[_Connection]:
        """Every connection."""
        with self._lock:
            return [used.connection for server in self._servers for used in (server.used, *server.retired)]

    def choose(self) -> Server[_Connection]:
        """The next one in turn that is not avoided; of avoided ones the one that is so for the shortest time."""
        with self._lock:
            now = time.monotonic()
            turns = [(self._next + step) % len(self._servers) for step in range(len(self._servers))]
            index = min(turns, key=lambda turn: max(0.0, self._servers[turn].avoided_until - now))
            self._next = (index + 1) % len(self._servers)
            self._renew(self._servers[index])
            return self._servers[index]

    @contextmanager
    def using(self, server: Server[_Connection]) -> Iterator[Used[_Connection]]:
        """The server's connection, which is not closed meanwhile, nor while a call lasts that it is told to keep."""
        with self._lock:
            used = server.used
            used.users += 1
        try:
            yield used
        finally:
            with self._lock:
                used.users -= 1

    def failed(self, server: Server[_Connection]) -> None:
        """It could not be reached, was lost, or takes nothing: avoid it, for longer from time to time."""
        with self._lock:
            if not server.avoided:  # else many requests were lost at once
                server.penalty = min(max(2 * server.penalty, _FIRST_PENALTY), _LONGEST_PENALTY)
                server.avoided_until = time.monotonic() + server.penalty

    def worked(self, server: Server[_Connection]) -> None:
        """It took a request."""
        server.penalty = server.avoided_until = 0.0

    @property
    def another(self) -> bool:
        """Whether one is not avoided, so that nothing is to be waited for."""
        return not all(server.avoided for server in self._servers)

    def _renew(self, server: Server[_Connection]) -> None:
        """Connect anew if the files have changed; while they cannot be read, the connection stays."""
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
        server.retired.append(server.used)
        server.used, server.stamp = Used(connection), now
