"""Keeps a service within its memory, whatever its clients send: the last line, behind the limits of every message.

gRPC holds the bytes of a message until it is whole, up to ``--max-message-bytes`` for each call, and says nothing of
them. So a thread watches the size of the process. When it grows, the guard gives free memory back to the system; if
that is not enough, it closes the connections over which most has come that never became a message: as soon as memory
is short, whenever it came.

What HTTP/2, TLS and gRPC add becomes no message either, and nobody says how much that is. So of each connection the
guard takes as explained what honest use adds: so much for each message that became whole, for what came and went over
it, and for its time. A client can hide as much under it, less what its own frames take: at most 192 bytes for each
message that it sends over the same connection, a million small ones for 180 MB, and what metadata it can send in less
than its length. Where closing what holds more than that does not help, less is explained the nearer the process is to
its budget, and at the budget nothing, so that what is hidden does not take it past that. Beyond what is explained, a
connection may hold 128 KiB: with as many as one client may have (512), a sixteenth of 1 GiB. And all of it may be a
tenth of what the process has above a quarter of its budget: at half of 1 GiB, 26 MiB.

What came of calls that ended before their message was whole, or was read, counts as held although it is gone: nobody
says how much that was, either.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from services.process.memory import give_back_free_memory
from services.rpc.connections import Connection, accepted, close, peer_of

log = structlog.get_logger(__name__)

INTERVAL = 0.05
"""Seconds between looks."""
_LOOKS_AT_REST = 100
"""While there is enough memory, connections that are over are forgotten once in so many looks."""
_LOOKS_WHILE_SHORT = 20
"""While memory is short, and neither grows nor was anything closed, something is done once in so many looks."""
_LOOKS_TO_SETTLE = 10
"""After connections were closed, for gRPC to free what they held, before less is explained of others."""
_LEAST_HELD = 128 << 10
"""Bytes; a connection that holds less is not closed."""
_WORTH_CLOSING = 10
"""Nothing is closed where all that could be is less than this part of what is too much: it would not help."""
_PER_MESSAGE = 192
"""Bytes that are explained by a message that became whole: without TLS, the headers of its call and its frames took 58
here, those of one in a stream 40. TLS adds about 30 for each write, a trace 70."""
_MOST_METADATA = 2 << 10
"""Bytes of a call's metadata that are explained: a token has rarely more. (HTTP/2 lets them be repeated for a few, so
all of them explain no more than what came.)"""
_PER_SECOND = 32
"""Bytes that are explained by a second: pings took 9."""
_BYTES_PER_FRAMING = 256
"""Of a message, for each byte that frames take: those of TLS 29 of 16 KiB, those of HTTP/2 as many as 9."""
_BYTES_PER_UPDATE = 512
"""Taken by the other end, for each byte that it says so with: one of 2000 here."""
_WORTH_GIVING_BACK = 32 << 20
_LOOKS_BEFORE_GIVING_BACK = 10 * _LOOKS_AT_REST
"""Of what is free, only the C allocator knows how much there is: as often as this it is asked to give it back."""
_PAGE_BYTES = 4096


def resident() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES


@dataclass(slots=True)
class _Delivered:
    """What became messages of what came over one connection."""

    num_messages: int = 0
    num_bytes: int = 0
    metadata_bytes: int = 0
    """Of the calls on it; clients may send long metadata anew with each, and do."""
    since: float = field(default_factory=time.monotonic)
    inode: int | None = None
    """Of the connection's socket, once that is known."""


class MemoryGuard:
    """Watches one process, from ``start`` to ``stop``."""

    def __init__(self, port: int | None, budget: int, beside: int = 0) -> None:
        """``port``: whose connections are closed; with None it only gives memory back.

        ``budget``: bytes that the process may have, beside so many that it has anyway.

        From half of the budget on, connections are closed, until a quarter is left: memory grows on while they are.
        """
        self._port = port
        self._all = beside + budget
        self._most = beside + budget // 2
        self._enough = beside + budget // 4
        self._delivered: dict[tuple[str, int], _Delivered] = {}
        """By the other end of the connection."""
        self._after_giving_back = self._least = resident()
        self._looks, self._acted = 0, -_LOOKS_AT_REST
        """How many there were, and the one that last did something because memory was short."""
        self._closed = -_LOOKS_AT_REST
        """The one that last closed connections."""
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
        if (delivered := self._of(peer)) is not None:
            delivered.num_messages += 1
            delivered.num_bytes += size

    def called(self, peer: str, metadata_bytes: int) -> None:
        """A call began, with so much metadata."""
        if (delivered := self._of(peer)) is not None:
            delivered.metadata_bytes += min(metadata_bytes, _MOST_METADATA)

    def _of(self, peer: str) -> _Delivered | None:
        one = peer_of(peer)
        return None if one is None else self._delivered.get(one) or self._delivered.setdefault(one, _Delivered())

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
        if self._is_due(size):
            give_back_free_memory()
            size = self._after_giving_back = resident()
            self._acted = self._looks
            if size >= self._most and self._close_heaviest(size):
                self._closed = self._looks

    def _is_due(self, size: int) -> bool:
        """Memory is short: whether there may be something that can be done."""
        looks = self._looks - self._acted
        if self._port is None:  # there are no connections to close: nothing is gained by haste
            return looks >= _LOOKS_AT_REST
        has_closed = self._closed == self._acted
        return looks >= _LOOKS_WHILE_SHORT or has_closed or size > self._after_giving_back + _WORTH_GIVING_BACK

    def _rest(self, size: int) -> None:
        """There is enough memory: give back what peaks left."""
        due = self._looks % _LOOKS_BEFORE_GIVING_BACK == 0
        if size > self._after_giving_back + _WORTH_GIVING_BACK or (due and size > self._least + _WORTH_GIVING_BACK):
            give_back_free_memory()
            size = resident()
        self._after_giving_back, self._least = size, min(size, self._least)
        self._connections()

    def _close_heaviest(self, size: int) -> bool:
        """Close connections until what they hold is as much as is too much; whether there were any."""
        connections, excess = self._connections(), size - self._enough
        held = self._heaviest(connections, 1.0, excess)
        if not held and (size >= self._all or self._looks - self._closed >= _LOOKS_TO_SETTLE):
            explained = max(0.0, (self._all - size) / (self._all - self._most))
            held = self._heaviest(connections, explained, excess)
        if not held:
            return False
        closed = 0
        for amount, connection in held:
            if excess <= 0:
                break
            close(connection)
            excess -= amount
            closed += 1
        heaviest = held[0][1].peer[0]
        log.warning("memory is short: closed connections", resident=size, connections=closed, heaviest=heaviest)
        return True

    def _heaviest(self, connections: list[Connection], explained: float, excess: int) -> list[tuple[int, Connection]]:
        """Those that hold something, with how much, the most first; none where that is little of what is too much."""
        every = ((self._held(one, explained), one) for one in connections)
        held = sorted((pair for pair in every if pair[0] >= _LEAST_HELD), key=lambda pair: pair[0], reverse=True)
        return held if sum(amount for amount, _ in held) * _WORTH_CLOSING >= excess else []

    def _connections(self) -> list[Connection]:
        """Those that there are; what was delivered over others is forgotten."""
        if self._port is None:
            return []
        before = list(self._delivered)
        connections = list(accepted(self._port))
        for peer in set(before) - {one.peer for one in connections}:
            del self._delivered[peer]
        for one in connections:
            delivered = self._delivered.setdefault(one.peer, _Delivered())
            if delivered.inode not in (None, one.inode):
                delivered = self._delivered[one.peer] = _Delivered()
            delivered.inode = one.inode
        return connections

    def _held(self, connection: Connection, explained: float) -> int:
        """Bytes that came over it, became no message, and are not explained by how it is used.

        ``explained``: the part that counts of what would be explained if memory were not short.
        """
        delivered = self._delivered[connection.peer]
        other = connection.received - delivered.num_bytes
        framing = (
            delivered.num_messages * _PER_MESSAGE
            + min(delivered.metadata_bytes, max(0, other))
            + delivered.num_bytes // _BYTES_PER_FRAMING
            + connection.taken // _BYTES_PER_UPDATE
            + (time.monotonic() - delivered.since) * _PER_SECOND
        )
        return other - int(framing * explained)
