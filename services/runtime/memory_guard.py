"""Keeps a service within its memory, whatever its clients send: the last line, behind the limits of every message.

gRPC holds the bytes of a message until it is whole, up to ``--max-message-bytes`` for each call, and says nothing of
them. So a thread watches the size of the process. When it grows, the guard gives free memory back to the system; if
that is not enough, it closes the connections over which most has come that never became a message.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import structlog

from services.runtime.connections import Connection, accepted, close, peer_of
from services.runtime.garbage import give_back_free_memory

log = structlog.get_logger(__name__)

INTERVAL = 0.05
"""Seconds between looks."""
_LOOKS_AT_REST = 100
"""While there is enough memory, what has come is noted once in so many looks."""
_LEAST_HELD = 128 << 10
"""Bytes; a connection that holds less is not closed: headers and frames become no message either."""
_WORTH_GIVING_BACK = 32 << 20
_LOOKS_BEFORE_GIVING_BACK = 10 * _LOOKS_AT_REST
"""Of what is free, only the C allocator knows how much there is: as often as this it is asked to give it back."""
_PAGE_BYTES = 4096


def resident() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES


class MemoryGuard:
    """Watches one process, from ``start`` to ``stop``."""

    def __init__(self, port: int | None, budget: int, beside: int = 0) -> None:
        """``port``: whose connections are closed; with None it only gives memory back.

        ``budget``: bytes that the process may have, beside so many that it has anyway.

        From half of the budget on, connections are closed, until a quarter is left: memory grows on while they are.
        """
        self._port = port
        self._most = beside + budget // 2
        self._enough = beside + budget // 4
        self._delivered: Counter[tuple[str, int]] = Counter()
        """Bytes of messages that came over each connection."""
        self._held_before: dict[tuple[str, int], int] = {}
        """Bytes that had become no message when there was enough memory."""
        self._after_giving_back = self._least = resident()
        self._looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory guard", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def delivered(self, peer: str, size: int) -> None:
        """A message of so many bytes is whole; ``peer`` as gRPC writes it."""
        if (one := peer_of(peer)) is not None:
            self._delivered[one] += size

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                self.look()
            except Exception:
                log.exception("the memory guard failed")

    def look(self) -> None:
        """Do what is necessary now."""
        size = resident()
        self._looks += 1
        if size < self._most:
            if self._looks % _LOOKS_AT_REST == 0:
                self._rest(size)
            return
        if self._port is None and self._looks % _LOOKS_AT_REST:
            return  # there are no connections to close: nothing is gained by haste
        give_back_free_memory()
        if (size := resident()) >= self._most:
            self._close_heaviest(size)

    def _rest(self, size: int) -> None:
        """There is enough memory: give back what peaks left, and note what connections have brought so far."""
        due = self._looks % _LOOKS_BEFORE_GIVING_BACK == 0
        if size > self._after_giving_back + _WORTH_GIVING_BACK or (due and size > self._least + _WORTH_GIVING_BACK):
            give_back_free_memory()
            size = resident()
        self._after_giving_back, self._least = size, min(size, self._least)
        connections = {one.peer: one.received for one in self._connections()}
        for peer in self._delivered.keys() - connections.keys():
            del self._delivered[peer]
        self._held_before = {peer: received - self._delivered[peer] for peer, received in connections.items()}

    def _close_heaviest(self, size: int) -> None:
        """Close connections until what they hold is as much as is too much."""
        held = sorted(((self._held(one), one) for one in self._connections()), key=lambda pair: pair[0], reverse=True)
        excess = size - self._enough
        closed = 0
        for amount, connection in held:
            if amount < _LEAST_HELD or excess <= 0:
                break
            close(connection)
            excess -= amount
            closed += 1
        if closed:
            heaviest = held[0][1].peer[0]
            log.warning("memory is short: closed connections", resident=size, connections=closed, heaviest=heaviest)

    def _connections(self) -> Iterable[Connection]:
        return () if self._port is None else accepted(self._port)

    def _held(self, connection: Connection) -> int:
        """Bytes that came over it since there was enough memory, and became no message."""
        peer = connection.peer
        return connection.received - self._delivered[peer] - self._held_before.get(peer, 0)
