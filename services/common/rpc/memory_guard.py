"""Keeps a process within its memory budget, whatever its clients send: the last resort after the limits on messages.

gRPC holds the bytes of a message until it is complete, up to ``--max-message-bytes`` for each call, and does not report
them. So a thread watches the resident memory of the process. When it is high, the guard returns malloc's free memory to
the system; if that is not enough, it closes the connections that hold the most: bytes received that have not become
complete messages.

The framing of HTTP/2, TLS and gRPC never becomes a message, and nothing reports its size. So each connection has an
overhead allowance, estimated from honest use: for complete messages, for bytes received and sent, and for age. An
attacker can hide as many bytes as the allowance, less the cost of its own frames: at most 192 bytes per message on the
same connection (180 MB take a million small messages), and its metadata, if HTTP/2 compresses that. Where closing the
connections that exceed their allowance does not help, the allowance shrinks as memory approaches the budget, to zero at
the budget, so that hidden bytes do not take the process past it. Beyond its allowance a connection may hold 128 KiB:
for the 512 connections of one client, a sixteenth of 1 GiB. All connections together may hold a tenth of the memory
above a quarter of the budget: 26 MiB at half of 1 GiB.

If a call ended before its message was complete or read, its bytes still count as held, although gRPC has freed them:
nothing reports that, either.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import structlog

from services.common.process.memory import resident_memory, trim_malloc
from services.common.rpc.connections import AcceptedConnection, accepted_connections, close_connection, parse_peer

INTERVAL = 0.05
"""Seconds between checks."""
_IDLE_CHECKS = 100
"""While there is enough memory, the records of closed connections are dropped every ``_IDLE_CHECKS`` checks."""
_SHORT_CHECKS = 20
"""While memory is short, but does not grow and nothing was closed, the guard acts every ``_SHORT_CHECKS`` checks."""
_SETTLE_CHECKS = 10
"""Checks that gRPC has to free the memory of closed connections before the allowance shrinks."""
_MIN_HELD = 128 << 10
"""Bytes; a connection that holds less is not closed."""
_MIN_SHARE = 0.1
"""Nothing is closed if all candidates together hold less than this share of the excess: closing would not help."""
_PER_MESSAGE = 192
"""Allowance in bytes for a complete message. Measured without TLS: 58 for the headers and frames of a call, 40 for
those of a message in a stream. TLS adds about 30 per write, a trace context 70."""
_MAX_METADATA = 2 << 10
"""Allowance in bytes for the metadata of a call: a token is rarely longer. (HTTP/2 repeats metadata in a few bytes, so
the allowance for metadata is never more than the bytes that became no message.)"""
_PER_SECOND = 32
"""Allowance in bytes for a second of age: pings took 9."""
_BYTES_PER_FRAMING = 256
"""Bytes of messages for each byte of allowance: TLS frames take 29 of 16 KiB, those of HTTP/2 up to 9."""
_BYTES_PER_UPDATE = 512
"""Bytes acknowledged by the other end for each byte of allowance: its window updates took one byte in 2000."""
_WORTH_TRIMMING = 32 << 20
"""Bytes of growth after which malloc is asked to return free memory."""
_TRIM_CHECKS = 10 * _IDLE_CHECKS
"""Without growth, malloc is asked every ``_TRIM_CHECKS`` checks: only malloc knows how much is free."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Delivered:
    """How many of one connection's bytes became complete messages."""

    num_messages: int = 0
    num_bytes: int = 0
    metadata_bytes: int = 0
    """Metadata bytes summed over the connection's calls: many clients send long metadata with each call."""
    since: float = field(default_factory=time.monotonic)
    inode: int | None = None
    """Inode of the connection's socket; None until known."""


class MemoryGuard:
    """Watches this process from ``start`` to ``stop``."""

    def __init__(self, port: int | None, budget: int, baseline: int = 0) -> None:
        """``port``: the guard may close connections to this port; with None it only trims malloc.

        ``budget``: bytes that the process may have beyond ``baseline``. Above half of it connections are closed until
        a quarter would be left, because memory goes on growing meanwhile.
        """
        self._port = port
        self._limit = baseline + budget
        self._high_water = baseline + budget // 2
        self._low_water = baseline + budget // 4
        self._delivered: dict[tuple[str, int], _Delivered] = {}
        """Records of connections, keyed by the address and port of the other end."""
        self._trimmed_size = self._min_size = resident_memory()
        """Resident memory after the last trim, and the least that was seen while memory was not short."""
        self._checks, self._acted_at = 0, -_IDLE_CHECKS
        """The number of checks so far, and the number of the check that last acted because memory was short."""
        self._closed_at = -_IDLE_CHECKS
        """The number of the check that last closed connections."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def on_message(self, peer: str, size: int) -> None:
        """A message of ``size`` bytes is complete; ``peer`` as gRPC writes it."""
        if (delivered := self._delivered_by(peer)) is not None:
            delivered.num_messages += 1
            delivered.num_bytes += size

    def on_call(self, peer: str, metadata_bytes: int) -> None:
        if (delivered := self._delivered_by(peer)) is not None:
            delivered.metadata_bytes += min(metadata_bytes, _MAX_METADATA)

    def _delivered_by(self, peer: str) -> _Delivered | None:
        key = parse_peer(peer)
        return None if key is None else self._delivered.get(key) or self._delivered.setdefault(key, _Delivered())

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                self.check()
            except Exception:
                log.exception("the memory guard failed")

    def check(self) -> None:
        """Compare the process's memory with its budget, and act if it is short."""
        size = resident_memory()
        self._checks += 1
        if size < self._high_water:
            if self._checks % _IDLE_CHECKS == 0:
                self._tidy(size)
            return
        if self._may_act(size):
            trim_malloc()
            size = self._trimmed_size = resident_memory()
            self._acted_at = self._checks
            if size >= self._high_water and self._close_heaviest(size):
                self._closed_at = self._checks

    def _may_act(self, size: int) -> bool:
        """Whether memory is short and acting again may help: not while earlier measures still take effect."""
        checks = self._checks - self._acted_at
        if self._port is None:  # there are no connections to close: nothing is gained by haste
            return checks >= _IDLE_CHECKS
        has_closed = self._closed_at == self._acted_at
        return checks >= _SHORT_CHECKS or has_closed or size > self._trimmed_size + _WORTH_TRIMMING

    def _tidy(self, size: int) -> None:
        """While there is enough memory: trim malloc after peaks, and forget closed connections."""
        due = self._checks % _TRIM_CHECKS == 0
        if size > self._trimmed_size + _WORTH_TRIMMING or (due and size > self._min_size + _WORTH_TRIMMING):
            trim_malloc()
            size = resident_memory()
        self._trimmed_size, self._min_size = size, min(size, self._min_size)
        self._connections()

    def _close_heaviest(self, size: int) -> bool:
        """Close connections until they held as much as the excess; returns whether any was closed."""
        connections, excess = self._connections(), size - self._low_water
        held = self._heaviest(connections, 1.0, excess)
        if not held and (size >= self._limit or self._checks - self._closed_at >= _SETTLE_CHECKS):
            allowance = max(0.0, (self._limit - size) / (self._limit - self._high_water))
            held = self._heaviest(connections, allowance, excess)
        if not held:
            return False
        closed = 0
        for amount, connection in held:
            if excess <= 0:
                break
            close_connection(connection)
            excess -= amount
            closed += 1
        heaviest = held[0][1].peer[0]
        log.warning("memory is short: closed connections", resident=size, connections=closed, heaviest=heaviest)
        return True

    def _heaviest(
        self, connections: list[AcceptedConnection], allowance: float, excess: int
    ) -> list[tuple[int, AcceptedConnection]]:
        """Connections with the bytes they hold, largest first; empty if closing them all would not help."""
        every = ((self._held(one, allowance), one) for one in connections)
        held = sorted((pair for pair in every if pair[0] >= _MIN_HELD), key=lambda pair: pair[0], reverse=True)
        return held if sum(amount for amount, _ in held) >= excess * _MIN_SHARE else []

    def _connections(self) -> list[AcceptedConnection]:
        """The open connections; the records of others are dropped."""
        if self._port is None:
            return []
        before = list(self._delivered)
        connections = list(accepted_connections(self._port))
        for peer in set(before) - {one.peer for one in connections}:
            del self._delivered[peer]
        for one in connections:
            delivered = self._delivered.setdefault(one.peer, _Delivered())
            if delivered.inode not in (None, one.inode):
                delivered = self._delivered[one.peer] = _Delivered()
            delivered.inode = one.inode
        return connections

    def _held(self, connection: AcceptedConnection, allowance: float) -> int:
        """Bytes received that have not become messages, less ``allowance`` (0 to 1) times the overhead allowance."""
        delivered = self._delivered[connection.peer]
        other = connection.bytes_received - delivered.num_bytes
        framing = (
            delivered.num_messages * _PER_MESSAGE
            + min(delivered.metadata_bytes, max(0, other))
            + delivered.num_bytes // _BYTES_PER_FRAMING
            + connection.bytes_acked // _BYTES_PER_UPDATE
            + (time.monotonic() - delivered.since) * _PER_SECOND
        )
        return other - int(framing * allowance)
