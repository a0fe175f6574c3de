"""Connections over TCP: whoever does not know the key gets none, and keeps nobody waiting."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from typing import Any

import pytest

from engine_core.executor.ray import tcp
from engine_core.executor.ray.tcp import TcpListener, connect, shut, wait_at_most

HOST = "127.0.0.1"
SECONDS = 30.0
"""Enough for what happens at once, however busy the machine is."""


@pytest.fixture
def listener() -> Iterator[TcpListener]:
    """Once closed it leaves no descriptor and no thread, whatever it was about to do."""
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
    listener = TcpListener(HOST)
    yield listener
    listener.close()
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before  # noqa: PTH208


class Connecting(threading.Thread):
    """Connects with a key."""

    def __init__(self, listener: TcpListener, key: bytes, seconds: float = SECONDS) -> None:
        super().__init__(daemon=True)
        self._to = HOST, listener.port, key, "hello", seconds
        self._connection: Connection[Any, Any] | None = None
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._connection = connect(*self._to)
        except Exception as error:
            self._error = error

    def result(self) -> Connection[Any, Any]:
        self.join(SECONDS)
        if self._error is not None:
            raise self._error
        assert self._connection is not None
        return self._connection


def accepted(listener: TcpListener) -> Connection[Any, Any]:
    assert wait([listener], SECONDS)  # type: ignore[list-item]
    connection, first = listener.accept()
    assert first == "hello"
    return connection


def require_one_gets_in(listener: TcpListener) -> None:
    with Connecting(listener, listener.key).result(), accepted(listener):
        pass
    assert not wait([listener], 0)  # type: ignore[list-item]  # nobody else did


def stranger(listener: TcpListener) -> socket.socket:
    """Whom the listener has begun to ask for a proof."""
    line = socket.create_connection((HOST, listener.port), SECONDS)
    assert line.recv(1)
    return line


def require_ended(line: socket.socket) -> None:
    """By the listener, in time."""
    try:
        while line.recv(1024):
            pass
    except ConnectionError:
        pass


def test_who_knows_the_key_is_connected_and_may_then_be_silent(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 0.5)
    theirs = Connecting(listener, listener.key).result()
    ours = accepted(listener)
    late = threading.Timer(0.8, theirs.send, ["late"])
    late.start()
    assert ours.recv() == "late"
    late.join()
    shut(ours, socket.SHUT_WR)
    with pytest.raises(EOFError):
        theirs.recv()
    theirs.send("still")  # the other direction is open
    assert ours.recv() == "still"
    ours.close()
    theirs.close()


def test_who_has_another_key_is_refused_at_both_ends(listener: TcpListener) -> None:
    with pytest.raises(AuthenticationError):
        Connecting(listener, b"x" * 32).result()
    require_one_gets_in(listener)


def test_strangers_who_say_nothing_delay_nobody(listener: TcpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 1000.0)
    strangers = [stranger(listener) for _ in range(10)]
    socket.create_connection((HOST, listener.port)).close()
    require_one_gets_in(listener)
    for each in strangers:
        each.close()


def test_a_stranger_who_trickles_has_no_more_time_than_others(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 0.5)

    def trickle() -> None:
        for byte in b"\0\0\0\xc8" + b"x" * 200:  # a message of 200 bytes, which takes 10 s
            line.sendall(bytes([byte]))
            time.sleep(0.05)

    with stranger(listener) as line, pytest.raises(ConnectionError):
        trickle()
    require_one_gets_in(listener)


def proven(listener: TcpListener) -> socket.socket:
    """Has proved that it knows the key, and sent no message."""
    while True:
        line = socket.create_connection((HOST, listener.port), SECONDS)
        line.setblocking(True)
        try:
            with Connection(os.dup(line.fileno())) as proving:
                answer_challenge(proving, listener.key)
                deliver_challenge(proving, listener.key)
        except (EOFError, ConnectionError):  # the machine was too busy for a proof in so short a time
            line.close()
            continue
        line.settimeout(SECONDS)
        return line


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\5no", b"\0\0\0\5hello", b"\0\1\0\0"], ids=str)
def test_who_stops_before_the_first_message_counts_as_a_stranger(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """It sends nothing, or half of a message, or something else, or too much."""
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 0.5)
    with proven(listener) as line:
        line.sendall(sent)
        require_one_gets_in(listener)
        require_ended(line)


def test_those_for_whom_there_is_no_room_are_refused_at_once_and_come_again(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_MOST_PROOFS", 2)
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 1000.0)
    with stranger(listener), stranger(listener) as second:
        with socket.create_connection((HOST, listener.port), SECONDS) as refused:
            require_ended(refused)
        connecting = Connecting(listener, listener.key)
        connecting.join(0.3)
        assert connecting.is_alive()
        second.close()
        with connecting.result(), accepted(listener):
            pass


def test_who_connects_gives_up_in_time(listener: TcpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_MOST_PROOFS", 0)
    with pytest.raises(TimeoutError):
        Connecting(listener, listener.key, 0.3).result()
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError):
            connect(HOST, port, listener.key, "hello", 0.3)
    with pytest.raises(ConnectionRefusedError):  # nobody listens any more
        connect(HOST, port, listener.key, "hello", 1000.0)


def test_closing_waits_for_nobody(listener: TcpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 1000.0)
    with stranger(listener) as line, Connecting(listener, listener.key).result() as theirs:
        assert wait([listener], SECONDS)  # type: ignore[list-item]
        listener.close()
        require_ended(line)
        with pytest.raises(EOFError):  # nobody has accepted it
            theirs.recv()


def test_half_a_message_is_not_waited_for() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        wait_at_most(ours, 1)
        theirs.send_bytes(b"whole")
        assert ours.recv_bytes() == b"whole"
        os.write(theirs.fileno(), b"\0\0\0\5ha")
        with pytest.raises(OSError, match="unavailable"):
            ours.recv_bytes()
