"""Ports for processes that tests start again where they were, and that nobody else is given meanwhile."""

from __future__ import annotations

import socket


class HeldPort:
    """A port of 127.0.0.1. Who names it may listen on it; the system gives it to no one who takes any port."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        # Bound but not listening, this keeps out none of those who set the same option, as gRPC and http.server do.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = int(self._socket.getsockname()[1])

    def release(self) -> None:
        self._socket.close()
