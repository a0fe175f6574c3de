"""A command that was given the wrong port says which port that is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from services.cli.commands._diagnosis import FULL_NAMES
from services.cli.main import cli
from services.common.config.settings import EngineServiceSettings, ProcessorSettings, ServerSettings
from services.common.telemetry.metrics_endpoint import start_metrics

PROCESSOR, ENGINE = (
    ProcessorSettings(server=ServerSettings(port=0)),
    EngineServiceSettings(server=ServerSettings(port=0)),
)
COMMANDS = [("generate", "hello", "--address"), ("chat", "--address"), ("status", "--address"), ("health",)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("generate", "chat"):
        monkeypatch.setattr(f"services.cli.commands.{command}.PATIENCE", 0.0)


def told(*arguments: str) -> str:
    """All that a command says."""
    result = CliRunner(env=dict.fromkeys(os.environ, None)).invoke(cli, arguments, standalone_mode=False)
    return result.output + str(result.exception or "")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_metrics_port_is_named_as_such(command: tuple[str, ...]) -> None:
    for settings, words in ((PROCESSOR, "clients connect to 127.0.0.1:"), (ENGINE, "clients connect to a processor")):
        metrics = start_metrics(settings, CollectorRegistry())
        try:
            said = told(*command, f"127.0.0.1:{metrics.port}")
        finally:
            metrics.close()
        assert f"{settings.service}'s metrics port" in said
        assert words in said


class Web(BaseHTTPRequestHandler):
    """Some program's port."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_another_programs_web_port_is_told_from_ours() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        said = told("health", f"127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert "this is an HTTP port, not a gRPC port" in said


@pytest.fixture(params=["engine", "detokenizer", "processor"])
def other(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A service that answers for its health alone, and its address."""
    server = grpc.server(ThreadPoolExecutor(2))
    checks = health.HealthServicer()
    checks.set(FULL_NAMES[request.param], health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield request.param, f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_another_service_of_the_ring_is_named(other: tuple[str, str]) -> None:
    service, address = other
    if service == "processor":
        calls = [("bench", "--requests", "1", "--engine", address), ("status", "--engine", address)]
    else:
        calls = [("generate", "hello", "--address", address), ("status", "--address", address)]
    wanted = "an engine" if service == "processor" else "a processor"
    for call in calls:
        assert f"{service}, not {wanted}" in told(*call)


@pytest.mark.parametrize(
    ("arguments", "variable"), [(("HERE",), "nowhere"), (("--address", "HERE"), "nowhere"), ((), "HERE")]
)
def test_health_takes_an_address_as_the_other_commands_do(
    other: tuple[str, str], arguments: tuple[str, ...], variable: str
) -> None:
    _, here = other
    given = ["health", "--service", FULL_NAMES[other[0]], *(one.replace("HERE", here) for one in arguments)]
    done = CliRunner().invoke(cli, given, env={"RINGLINE_ADDRESS": variable.replace("HERE", here)})
    assert (done.exit_code, done.output) == (0, "SERVING\n")


def test_a_service_that_is_unknown_at_an_address_is_not_shown_as_serving(other: tuple[str, str]) -> None:
    service, address = other
    flag = "--engine" if service == "processor" else "--address"
    [stack] = json.loads(CliRunner().invoke(cli, ["status", flag, address, "--json"]).output)["stacks"]
    assert [shown["health"] for shown in stack["services"]] == ["SERVICE_UNKNOWN"]
