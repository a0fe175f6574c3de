"""Connections between the hosts of an engine. Both ends prove that they know a key; messages are not encrypted.

Any failure before the first message is read counts as a stranger's attempt. Strangers delay no other connection.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

_PROOF_SECONDS = 5.0
"""Time for the other end to prove that it knows the key, and to send its first message."""
_MOST_PROOFS = 64
"""Most proofs at a time. Further connections are refused, and may retry."""
_AGAIN_SECONDS = 0.1
"""Pause between attempts to connect or accept."""
_MOST_BYTES = 4096
"""Largest first message."""
_LOST_MILLISECONDS = 3000
"""Time after which a host that acknowledges nothing counts as gone."""


class TcpListener:
    """Accepts connections from peers that know its key, in threads, at any port of one address."""

    def __init__(self, host: str) -> None:
        """Listen at the address ``host`` alone."""
        self._socket = socket.create_server((host, 0), family=_family(host), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self.key = secrets.token_bytes(32)
        self._proving: set[socket.socket] = set()
        self._proven: deque[tuple[Connection[Any, Any], Any]] = deque()
        self._count = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)  # number of ``_proven``
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = ThreadPoolExecutor(1 + _MOST_PROOFS, "tcp listener")
        self._threads.submit(self._serve)

    def fileno(self) -> int:
        """A descriptor, readable when ``accept`` would not wait."""
        return self._count

    def accept(self) -> tuple[Connection[Any, Any], Any]:
        """Wait for a connection; returns it with its first message."""
        os.eventfd_read(self._count)
        return self._proven.popleft()

    def close(self) -> None:
        """Idempotent. Accepted connections stay open."""
        if self._closing.is_set():
            return
        with self._lock:
            self._closing.set()
            for line in (self._socket, *self._proving):
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)  # wakes the thread that uses it
        self._threads.shutdown()
        self._socket.close()
        os.close(self._count)
        for connection, _ in self._proven:
            connection.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                line, _ = self._socket.accept()
            except OSError:  # closed, or too many open descriptors
                self._closing.wait(_AGAIN_SECONDS)
                continue
            with self._lock:
                if self._closing.is_set() or len(self._proving) >= _MOST_PROOFS:
                    line.close()
                else:
                    self._proving.add(line)
                    self._threads.submit(self._prove, line)

    def _prove(self, line: socket.socket) -> None:
        connection, exchange = None, _Exchange(line, time.monotonic() + _PROOF_SECONDS)
        with suppress(Exception):  # a stranger may send anything
            _set_options(line)
            deliver_challenge(exchange, self.key)  # type: ignore[arg-type]
            answer_challenge(exchange, self.key)  # type: ignore[arg-type]
            first = pickle.loads(exchange.recv_bytes(_MOST_BYTES))
            connection = _connection(line)
        with self._lock:  # ``close`` must not shut down a descriptor that has been reused
            line.close()
            self._proving.remove(line)
            if connection is not None:
                self._proven.append((connection, first))
                os.eventfd_write(self._count, 1)


def connect(host: str, port: int, key: bytes, first: Any, seconds: float) -> Connection[Any, Any]:
    """Connect to a ``TcpListener``, and send it the ``first`` message. Retries when refused, for ``seconds``.

    Raises ``OSError`` and ``AuthenticationError``.
    """
    end = time.monotonic() + seconds
    while True:
        with socket.create_connection((host, port), max(_AGAIN_SECONDS, end - time.monotonic())) as line:
            exchange = _Exchange(line, end)
            try:
                _set_options(line)
                answer_challenge(exchange, key)  # type: ignore[arg-type]
                deliver_challenge(exchange, key)  # type: ignore[arg-type]
                exchange.send_bytes(pickle.dumps(first))
                return _connection(line)
            except (EOFError, ConnectionError) as error:
                if time.monotonic() + _AGAIN_SECONDS > end:
                    raise TimeoutError(f"{host}:{port} refuses connections") from error
        time.sleep(_AGAIN_SECONDS)


def shut(connection: Connection[Any, Any], how: int) -> None:
    """``socket.shutdown`` for a connection."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(how)


def wait_at_most(connection: Connection[Any, Any], seconds: int) -> None:
    """Make reads fail with ``OSError`` if nothing arrives for ``seconds``."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


class _Exchange:
    """The part of ``Connection`` that a proof needs. All messages share one deadline, however slowly bytes arrive."""

    def __init__(self, line: socket.socket, end: float) -> None:
        self._line = line
        self._end = end

    def send_bytes(self, message: bytes) -> None:
        self._wait_until_end()
        self._line.sendall(struct.pack("!i", len(message)) + message)

    def recv_bytes(self, most: int) -> bytes:
        (size,) = struct.unpack("!i", self._read(4))
        if not 0 <= size <= most:
            raise OSError(f"a message of {size} bytes: expected at most {most}")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        message = b""
        while len(message) < size:
            self._wait_until_end()
            if not (part := self._line.recv(size - len(message))):
                raise EOFError
            message += part
        return message

    def _wait_until_end(self) -> None:
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError("no proof in time")
        self._line.settimeout(left)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _set_options(line: socket.socket) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # messages are small, and latency matters
    # A host that vanishes would otherwise go unnoticed for minutes; keepalive notices it while nothing is sent, too.
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MILLISECONDS)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        line.setsockopt(socket.IPPROTO_TCP, option, 1)


def _connection(line: socket.socket) -> Connection[Any, Any]:
    """Takes over the descriptor of ``line``."""
    line.setblocking(True)
    return Connection(line.detach())
