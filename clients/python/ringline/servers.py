"""Which of several servers is asked next: in turns, those last where a call failed a short while ago."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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

    def __init__(self, addresses: Sequence[str], connect: Callable[[str], _Connection]) -> None:
        self._servers = [Server(address, connect(address)) for address in addresses]
        self._next = random.randrange(len(addresses))
        self._lock = threading.Lock()
        self.closed = False
        """Whether their client is: nothing is asked any more."""

    def connections(self) -> list[_Connection]:
        """Every connection."""
        return [server.connection for server in self._servers]

    def choose(self) -> Server[_Connection]:
        """The next one in turn that is not avoided; of avoided ones the one that is so for the shortest time."""
        with self._lock:
            now = time.monotonic()
            turns = [(self._next + step) % len(self._servers) for step in range(len(self._servers))]
            index = min(turns, key=lambda turn: max(0.0, self._servers[turn].avoided_until - now))
            self._next = (index + 1) % len(self._servers)
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
