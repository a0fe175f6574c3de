"""Which of several servers is asked next: in turns, those last where a call failed a short while ago."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ringline.errors import RingError

_Connection = TypeVar("_Connection")

_FIRST_PENALTY = 0.5
_LONGEST_PENALTY = 10.0


def split_addresses(address: str | Sequence[str]) -> list[str]:
    """The gRPC targets in a list, or in a string with commas; raise ValueError if there is none.

    ``ipv4:`` and ``ipv6:`` targets may have commas of their own, and are not split.
    """
    if isinstance(address, str):
        address = [address] if address.startswith(("ipv4:", "ipv6:")) else address.split(",")
    addresses = [one.strip() for one in address]
    if not addresses or not all(addresses):
        raise ValueError(f"address: expected host:port, or several with commas between them, got {address!r}")
    return list(dict.fromkeys(addresses))


@dataclass(slots=True, eq=False)
class Server(Generic[_Connection]):
    """One address, and how it did lately."""

    address: str
    connection: _Connection
    stamp: object = None
    """Of the files that the connection was made with."""
    retired: _Connection | None = None
    """The one before, with the calls that it still has."""
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

        New calls then get a new connection. That before keeps those that it has, until it is closed when the files
        change once more.
        """
        self._connect = connect
        self._stamp = stamp
        self._close = close
        now = stamp()
        self._servers = [Server(address, connect(address), now) for address in addresses]
        self._next = random.randrange(len(addresses))
        self._lock = threading.Lock()
        self.closed = False
        """Whether their client is: nothing is asked any more."""

    def connections(self) -> list[_Connection]:
        """Every connection."""
        made = [each for server in self._servers for each in (server.connection, server.retired)]
        return [connection for connection in made if connection is not None]

    def choose(self) -> Server[_Connection]:
        """The next one in turn that is not avoided; of avoided ones the one that is so for the shortest time."""
        with self._lock:
            now = time.monotonic()
            turns = [(self._next + step) % len(self._servers) for step in range(len(self._servers))]
            index = min(turns, key=lambda turn: max(0.0, self._servers[turn].avoided_until - now))
            self._next = (index + 1) % len(self._servers)
            self._renew(self._servers[index])
            return self._servers[index]

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
        now = self._stamp()
        if now == server.stamp or self.closed:
            return
        try:
            connection = self._connect(server.address)
        except RingError:
            return
        if server.retired is not None:
            self._close(server.retired)
        server.connection, server.retired, server.stamp = connection, server.connection, now
