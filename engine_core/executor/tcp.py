"""Connections between the hosts of an engine. Both ends prove that they know a key; what they say is in the clear."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

_PROOF_SECONDS = 5
"""For the other end to prove that it knows the key."""
_LOST_MILLISECONDS = 3000
"""After which a host that acknowledges nothing is gone."""


class TcpListener:
    """Waits for connections of those who know its key, at any port of one address."""

    def __init__(self, host: str) -> None:
        """Listen at the address ``host`` alone."""
        self._socket = socket.create_server((host, 0), family=_family(host), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self.key = secrets.token_bytes(32)

    def fileno(self) -> int:
        """Readable when somebody asks for a connection."""
        return self._socket.fileno()

    def accept(self) -> Connection[Any, Any] | None:
        """Take one; None if it was a stranger's."""
        try:
            connection = _connection(self._socket.accept()[0])
        except OSError:
            return None
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
        except (OSError, EOFError, AuthenticationError):
            connection.close()
            return None
        _wait_at_most(connection, 0)
        return connection

    def close(self) -> None:
        """Idempotent. Connections stay."""
        self._socket.close()


def connect(host: str, port: int, key: bytes, timeout: float) -> Connection[Any, Any]:
    """Connect to a ``TcpListener``. Raises ``OSError`` and ``AuthenticationError``."""
    connection = _connection(socket.create_connection((host, port), timeout))
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    _wait_at_most(connection, 0)
    return connection


def shut(connection: Connection[Any, Any], how: int) -> None:
    """``socket.shutdown`` of a connection."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(how)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _connection(line: socket.socket) -> Connection[Any, Any]:
    line.setblocking(True)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # messages are small, and waited for
    # Else a host that is gone without a word would be waited for, for minutes; also where nothing is being sent.
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MILLISECONDS)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        line.setsockopt(socket.IPPROTO_TCP, option, 1)
    connection: Connection[Any, Any] = Connection(line.detach())
    _wait_at_most(connection, _PROOF_SECONDS)
    return connection


def _wait_at_most(connection: Connection[Any, Any], seconds: int) -> None:
    """Later reads fail after ``seconds``; 0: never."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))
