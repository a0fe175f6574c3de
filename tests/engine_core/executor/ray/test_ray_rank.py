"""A rank that is an actor, as the engine sees it: by its connections alone."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from engine_core.distributed.ranks import Rank
from engine_core.executor.ranks import child_process
from engine_core.executor.ray import launcher
from engine_core.executor.ray.launcher import RayRank
from engine_core.executor.ray.messages import KINDS

SECONDS = 30.0
"""Enough for what happens at once, however busy the machine is."""
HIGH = 1500
"""A descriptor above 1023, with which select(2) cannot deal."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def actor(
    monkeypatch: pytest.MonkeyPatch, many_descriptors: None
) -> Iterator[tuple[RayRank, dict[str, socket.socket]]]:
    """The rank, and the actor's ends of its connections."""
    monkeypatch.setattr(launcher, "_MESSAGE_SECONDS", 1)
    monkeypatch.setattr(child_process, "_OUTPUT_SECONDS", SECONDS)
    theirs: dict[str, socket.socket] = {}
    ours: dict[str, Connection[Any, Any]] = {}
    for kind in KINDS:
        engine, theirs[kind] = socket.socketpair()
        with engine:
            ours[kind] = Connection(fcntl.fcntl(engine, fcntl.F_DUPFD_CLOEXEC, HIGH))
    rank = RayRank(Rank(), "(pid 7 on there)", ours, lambda number, seconds: f"{number} was too large")
    yield rank, theirs
    for each in theirs.values():
        each.close()
    rank.close()


def test_its_end_is_seen_by_any_descriptor(actor: tuple[RayRank, dict[str, socket.socket]]) -> None:
    rank, theirs = actor
    assert not rank.wait(0.0)
    assert rank.ending(0.0) is None
    theirs["output"].sendall(b"the last words\n")
    for each in theirs.values():
        each.close()
    assert rank.wait(SECONDS)
    assert rank.ending(SECONDS) == "(pid 7 on there) has ended: 0 was too large; its last lines: the last words"


def test_half_a_sign_keeps_the_monitor_for_a_moment_only(actor: tuple[RayRank, dict[str, socket.socket]]) -> None:
    rank, theirs = actor
    os.write(theirs["signs"].fileno(), b"\0\0\0\5ha")
    with pytest.raises(OSError, match="unavailable"):
        rank.connections.signs.recv_bytes()
