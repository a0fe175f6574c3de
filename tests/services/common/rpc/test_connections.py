"""What the kernel tells of connections, how many there may be, and which are closed when they are short."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.common.rpc.connections import (
    AcceptedConnection,
    ConnectionGuard,
    accepted_connections,
    allowed_connections,
    parse_peer,
)
from tests.waiting import until


def test_there_are_no_more_connections_than_the_system_allows_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 2000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert allowed_connections(100) == 100
    assert limits == [(1024, 2000)]
    assert allowed_connections(1000) == 1000
    assert limits[1:] == [(1256, 2000)]
    assert allowed_connections(4096) == 2000 - 256
    assert limits[2:] == [(2000, 2000)]
    limits.append((1024, resource.RLIM_INFINITY))
    assert allowed_connections(4096) == 4096
    assert limits[-1] == (4096 + 256, resource.RLIM_INFINITY)


def connection(host: str, port: int, quiet: float = 60.0) -> AcceptedConnection:
    return AcceptedConnection((host, port), port, port, 100, 0, quiet)


def chosen(connections: list[AcceptedConnection], busy: Sequence[int] = ()) -> list[int]:
    """Ports of those that are closed where there are 16 places."""
    guard = ConnectionGuard(1, 16, lambda _, port: port in busy)
    return sorted(one.peer[1] for one in guard.idle_of_heaviest(connections))


def test_who_has_most_connections_loses_the_quietest() -> None:
    many = [connection("10.0.0.1", port, quiet=port / 10) for port in range(1, 11)]
    few = [connection(f"10.0.0.{port}", port) for port in range(11, 16)]
    assert chosen(few + many) == [*range(4, 11)]
    assert chosen(few + many, busy=[4, 5, 6]) == [1, 2, 3, *range(7, 11)]


def test_of_clients_that_have_as_many_the_quietest_connections_make_room() -> None:
    crowd = [connection(f"10.0.0.{port}", port, quiet=port / 10) for port in range(1, 16)]
    assert chosen(crowd) == [*range(9, 16)]
    assert chosen(crowd, busy=[15]) == [*range(8, 15)]


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", ("10.0.0.1", 5000)),
        ("ipv6:%5Bfe80::1%252%5D:5000", ("fe80::1", 5000)),
        ("unix:", None),
    ],
)
def test_a_peer_has_the_address_that_its_socket_has(name: str, peer: tuple[str, int] | None) -> None:
    assert parse_peer(name) == peer


async def test_looking_at_connections_leaves_no_descriptor(tmp_path: Path) -> None:
    accepted: list[asyncio.StreamWriter] = []  # one that is not kept is closed, from Python 3.12 on
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    with (tmp_path / "no socket").open("w"):
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        found = await until(lambda: list(accepted_connections(port)))
        assert found[0].peer == writer.get_extra_info("sockname")
        assert len(os.listdir("/proc/self/fd")) <= before + 1, "the other end's"  # noqa: PTH208
    accepted[0].close()
    writer.close()
    server.close()
