"""``ringline status`` of addresses that are given: each process behind a name is shown."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from click.testing import CliRunner, Result
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.commands.status import status


class Door(engine_pb2_grpc.EngineServiceServicer):
    """An engine that tells its load."""

    def __init__(self, running: int) -> None:
        self.running = running

    def GetLoad(self, request, context):
        return engine_pb2.GetLoadResponse(load=engine_pb2.Load(running=self.running))


@contextmanager
def engine(host: str, running: int, port: int = 0) -> Iterator[int]:
    """Serving at one address of this machine; its port."""
    server = grpc.server(ThreadPoolExecutor(2))
    engine_pb2_grpc.add_EngineServiceServicer_to_server(Door(running), server)
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port(f"{host}:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(status, arguments, standalone_mode=False)


def test_every_engine_that_a_name_leads_to_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_system = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *arguments: int, **more: int) -> object:
        if host != "engine.ring":
            return ask_system(host, port, *arguments, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("services.commands.status._TIMEOUT", 60.0)  # whatever stands still meanwhile
    with engine("127.0.0.1", running=3) as port, engine("127.0.0.2", running=5, port=port):
        result = ask("--engine", f"engine.ring:{port}", "--json")
        [stack] = json.loads(result.stdout)["stacks"]
        shown = {service["address"]: service["load"]["running"] for service in stack["services"]}
        assert shown == {f"127.0.0.1:{port}": 3, f"127.0.0.2:{port}": 5}
        assert result.return_value == 0


def test_a_detokenizer_that_is_not_there_is_shown_as_such() -> None:
    result = ask("--detokenizer", "127.0.0.1:1", "--detokenizer", "no-such-host.invalid:1")
    assert result.stdout.count("UNREACHABLE") == 2
    assert result.return_value == 1
