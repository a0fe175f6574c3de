"""Connections over TCP: whoever does not know the key gets none, and keeps nobody waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

import pytest

from engine_core.executor import tcp
from engine_core.executor.tcp import TcpListener, connect, shut

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[TcpListener]:
    listener = TcpListener(HOST)
    yield listener
    listener.close()


class Connecting(threading.Thread):
    """Connects with a key, beside a listener that accepts."""

    def __init__(self, listener: TcpListener, key: bytes) -> None:
        super().__init__(daemon=True)
        self._to = HOST, listener.port, key, 5.0
        self.connection: Connection[Any, Any] | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.connection = connect(*self._to)
        except Exception as error:
            self.error = error


def test_who_knows_the_key_is_connected_and_may_then_be_silent(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 1)
    connecting = Connecting(listener, listener.key)
    ours = listener.accept()
    connecting.join(5)
    theirs = connecting.connection
    assert ours is not None
    assert theirs is not None
    threading.Timer(1.3, theirs.send, ["late"]).start()  # longer than a proof may take
    assert ours.recv() == "late"
    shut(ours, socket.SHUT_WR)
    with pytest.raises(EOFError):
        theirs.recv()
    theirs.send("still")  # the other direction is open
    assert ours.recv() == "still"
    ours.close()
    theirs.close()


def test_who_has_another_key_is_refused_at_both_ends(listener: TcpListener) -> None:
    stranger = Connecting(listener, b"x" * 32)
    assert listener.accept() is None
    stranger.join(5)
    assert isinstance(stranger.error, AuthenticationError | EOFError | OSError)


def test_a_stranger_who_says_nothing_or_leaves_is_not_waited_for(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 1)
    with socket.create_connection((HOST, listener.port)):
        start = time.monotonic()
        assert listener.accept() is None
        assert 0.5 < time.monotonic() - start < 3
    socket.create_connection((HOST, listener.port)).close()
    assert listener.accept() is None
