"""What clients take from the environment, and until when their calls last if nobody says."""

from __future__ import annotations

import socket
import time

import pytest
import ringline
from ringline.retry import DEFAULT_TIMEOUT

from tests.clients.either_client import CLIENTS, answer, connected
from tests.clients.scripted_server import hello


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RINGLINE_ADDRESS", "RINGLINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def shown(server) -> str | None:
    """The token of the last request."""
    return server.service.metadata[-1].get("authorization")


@CLIENTS
async def test_the_environment_names_servers_and_the_token_for_them(kind, server, monkeypatch) -> None:
    monkeypatch.setenv("RINGLINE_ADDRESS", f" 127.0.0.1:1, {server.address}")
    monkeypatch.setenv("RINGLINE_TOKEN", "of-environment\n")
    server.plays(hello)
    for options, token in (
        ({}, "Bearer of-environment"),
        ({"token": "given"}, "Bearer given"),
        ({"metadata": {"Authorization": "Basic x"}}, "Basic x"),
    ):
        async with connected(kind, **options) as client:
            assert (await answer(client, lambda client=client: client.generate("Hi"))).text == "Hello, world"
        assert shown(server) == token


@CLIENTS
async def test_the_token_of_the_environment_goes_to_no_server_that_a_program_names(kind, server, monkeypatch) -> None:
    monkeypatch.setenv("RINGLINE_ADDRESS", "elsewhere:50051")
    monkeypatch.setenv("RINGLINE_TOKEN", "of-environment")
    server.plays(hello)
    async with connected(kind, server.address) as client:
        await answer(client, lambda: client.generate("Hi"))
    assert shown(server) is None
    await answer(client, kind("elsewhere:50051").close)  # it has no token that plain text would show


@pytest.mark.parametrize(
    ("environment", "refusal"),
    [
        ({}, "address: none given, and RINGLINE_ADDRESS is not set: expected host:port, such as 127.0.0.1:50051"),
        ({"RINGLINE_ADDRESS": " "}, "address: none given, and RINGLINE_ADDRESS is not set"),
        ({"RINGLINE_ADDRESS": "one"}, "RINGLINE_ADDRESS: expected host:port, [v6]:port or unix:path, got 'one'"),
        ({"RINGLINE_ADDRESS": "one:1,"}, "RINGLINE_ADDRESS: expected host:port, or several with commas between them"),
        (
            {"RINGLINE_ADDRESS": "localhost:1,elsewhere:1", "RINGLINE_TOKEN": "secret"},
            "RINGLINE_TOKEN: it would be sent to elsewhere:1 unencrypted: add tls or ca",
        ),
        (
            {"RINGLINE_ADDRESS": "localhost:1", "RINGLINE_TOKEN": "sec ret"},
            "RINGLINE_TOKEN: no token: expected printable ASCII characters without blanks",
        ),
    ],
)
@CLIENTS
def test_an_unusable_environment_is_refused_by_the_name_of_its_variable(
    kind, environment, refusal, monkeypatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, ringline.InvalidRequest)) as refused:
        kind()
    assert str(refused.value).startswith(refusal)
    assert "secret" not in str(refused.value)


@CLIENTS
async def test_a_call_ends_within_an_hour_unless_it_or_its_client_says_otherwise(kind, server) -> None:
    server.plays(hello)

    async def sent(client, **options) -> int:
        await answer(client, lambda: client.generate("Hi", **options))
        return server.service.requests[-1].timeout_ms

    async with connected(kind, server.address) as client:
        assert 0.9 * DEFAULT_TIMEOUT < await sent(client) / 1000 <= DEFAULT_TIMEOUT
        assert 0 < await sent(client, timeout=5) <= 5000
        assert await sent(client, timeout=None) == 0
    async with connected(kind, server.address, timeout=7) as client:
        assert 0 < await sent(client) <= 7000
    async with connected(kind, server.address, timeout=None) as client:
        assert await sent(client) == 0


@CLIENTS
@pytest.mark.parametrize("timeout", [0, -1, 1e9, "soon"])
def test_a_client_is_not_made_with_a_timeout_that_no_call_could_have(kind, timeout) -> None:
    with pytest.raises((ringline.InvalidRequest, TypeError), match=r"^timeout: "):
        kind("localhost:1", timeout=timeout)


@CLIENTS
@pytest.mark.parametrize("address", ["ipv4:127.0.0.1:1,203.0.113.1", "ipv6:[::1]:1,[2001:db8::1]:1"])
def test_a_token_in_clear_needs_every_address_of_a_target_to_be_local(kind, address) -> None:
    with pytest.raises(ringline.InvalidRequest, match="unencrypted"):
        kind(address, token="given")
    kind("ipv4:127.0.0.1:1,127.0.0.2:1", token="given")


async def test_the_time_limit_of_a_call_holds_while_no_server_opens_a_session() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with connected(ringline.AsyncClient, f"127.0.0.1:{silent.getsockname()[1]}") as client:
            begun = time.monotonic()
            with pytest.raises(ringline.DeadlineExceeded, match="before a server opened the session"):
                await client.session().generate("Hi", timeout=0.2)
            assert time.monotonic() - begun < 2
