"""``ringline status``: which stacks and services an address leads to."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import click
import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import CollectorRegistry
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import pooling_pb2

from services.cli.commands._diagnosis import FULL_NAMES
from services.cli.commands._live_page import read_live_page
from services.cli.commands.status import ServiceStatus, StackStatus, fitted, stack_text, status
from services.cli.supervise.runtime_directory import ProcessState, StackState, runtime_directory
from services.cli.supervise.stack import SERVICES
from services.common.config.errors import FatalError
from services.common.telemetry.metrics_endpoint import MetricsEndpoint, Page, server_header


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Answers GetLoad."""

    def __init__(self, load: engine_pb2.Load) -> None:
        self.load = load

    def GetLoad(self, request, context):
        ranks = [engine_pb2.RankProcess(rank=f"tp{tp}/2 pp0/1", host="alpha", pid=40 + tp) for tp in range(2)]
        return engine_pb2.GetLoadResponse(load=self.load, ranks=ranks)


@contextmanager
def engine(
    host: str,
    running: int = 0,
    port: int = 0,
    state: HealthCheckResponse.ServingStatus = HealthCheckResponse.SERVING,
    **load: Any,
) -> Iterator[int]:
    """Serve at one address of this machine; yields the port."""
    server = grpc.server(ThreadPoolExecutor(2))
    engine_pb2_grpc.add_EngineServiceServicer_to_server(
        FakeEngine(engine_pb2.Load(running_choices=running, **load)), server
    )
    checks = health.HealthServicer()
    for name in ("", *FULL_NAMES.values()):  # in the place of a processor too
        checks.set(name, state)
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
    monkeypatch.setattr("services.cli.commands.status._TIMEOUT", 60.0)  # whatever stands still meanwhile
    with engine("127.0.0.1", running=3) as port, engine("127.0.0.2", running=5, port=port):
        result = ask("--engine", f"engine.ring:{port}", "--json")
        [stack] = json.loads(result.stdout)["stacks"]
        shown = {service["address"]: service["load"]["running_choices"] for service in stack["services"]}
        assert shown == {f"127.0.0.1:{port}": 3, f"127.0.0.2:{port}": 5}
        assert result.return_value == 0


@pytest.mark.parametrize(
    ("load", "shown"),
    [
        ({"blocks_used": 3, "blocks_total": 64, "kv_usage": 3 / 64}, "KV blocks 3 of 64 (5%)"),
        (
            {"blocks_used": 3, "blocks_total": 64, "states_used": 2, "states_total": 8, "kv_usage": 0.25},
            "KV blocks 3 of 64, states 2 of 8 (25%)",
        ),
        ({"states_used": 2, "states_total": 8, "kv_usage": 0.25}, "waiting 0, states 2 of 8 (25%)"),
        ({}, "KV blocks 0 of 0 (0%)"),
    ],
)
def test_an_engine_shows_what_it_has_of_blocks_and_states(load: dict[str, float], shown: str) -> None:
    with engine("127.0.0.1", **load) as port:
        assert shown in " ".join(ask("--engine", f"127.0.0.1:{port}").output.split())


@pytest.mark.parametrize(
    ("load", "shown"),
    [
        (
            {"drafts": 10, "draft_tokens": 30, "accepted_draft_tokens": 12, "accepted_by_position": [7, 4, 1]},
            "guessed tokens 30, right 40% (by position 70% 40% 10%), tokens per such step 2.20",
        ),
        ({"accepted_by_position": [0, 0]}, "guessed tokens: none yet"),
    ],
)
def test_an_engine_that_guesses_tokens_shows_how_many_are_right(load: dict[str, Any], shown: str) -> None:
    with engine("127.0.0.1", **load) as port:
        assert shown in " ".join(ask("--engine", f"127.0.0.1:{port}").output.split())
        answer = json.loads(ask("--engine", f"127.0.0.1:{port}", "--json").stdout)
        assert answer["stacks"][0]["services"][0]["load"]["accepted_by_position"] == load["accepted_by_position"]
    with engine("127.0.0.1") as port:
        assert "guessed" not in ask("--engine", f"127.0.0.1:{port}").output


def test_lines_are_as_long_as_columns_allow() -> None:
    text = "a stack\n\n  engine        SERVING         unix:/a/long-path/to/engine.sock\n    blocks 0 of 9, hits 1"
    assert fitted(text, 0) == fitted(text, 200) == text
    lines = fitted(text, 30).splitlines()
    assert lines == [
        "a stack",
        "",
        "  engine        SERVING",
        "      unix:/a/long-path/to/engine.sock",  # longer than a line
        "    blocks 0 of 9, hits 1",
    ]


def test_columns_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with engine("127.0.0.1", running=3) as port:
        assert max(map(len, ask("--engine", f"127.0.0.1:{port}").output.splitlines())) <= 40


def test_the_ranks_of_an_engine_are_named() -> None:
    with engine("127.0.0.1", running=3) as port:
        lines = ask("--engine", f"127.0.0.1:{port}").stdout.splitlines()
        assert [line.strip() for line in lines[-2:]] == [
            "rank tp0/2 pp0/1: pid 40 on alpha",
            "rank tp1/2 pp0/1: pid 41 on alpha",
        ]


def test_a_detokenizer_that_is_not_there_is_shown_as_such() -> None:
    result = ask("--detokenizer", "127.0.0.1:1", "--detokenizer", "no-such-host.invalid:1")
    assert result.stdout.count("UNREACHABLE") == 2
    assert result.return_value == 1


@contextmanager
def stack(pid: int, address: str, **services: ProcessState) -> Iterator[None]:
    """What a ``ringline serve`` tells about itself while it runs."""
    with runtime_directory() as directory:
        directory.write(StackState(pid, f"model-{pid}", 1.0, address, services))
        yield


@contextmanager
def page_served(body: bytes) -> Iterator[str]:
    """A processor's live page; yields the address of its metrics."""
    pages = {"/ring.json": Page("application/json", lambda: body)}
    endpoint = MetricsEndpoint(CollectorRegistry(), "127.0.0.1", 0, pages, name=server_header("processor"))
    try:
        yield f"http://127.0.0.1:{endpoint.port}/metrics"
    finally:
        endpoint.close()


@pytest.mark.usefixtures("private_runtime_directory")
def test_of_several_stacks_the_one_at_the_address_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.commands.status._TIMEOUT", 60.0)
    with engine("127.0.0.1", running=0) as mine, engine("127.0.0.1", running=0) as other:
        processors = {port: ProcessState(port, f"127.0.0.1:{port}", None) for port in (mine, other)}
        addresses = {port: process.address for port, process in processors.items()}
        with (
            stack(1, addresses[mine], processor=processors[mine], engine=ProcessState(7, f"127.0.0.1:{mine}", None)),
            stack(2, addresses[other], processor=processors[other]),
        ):
            monkeypatch.setenv("RINGLINE_ADDRESS", addresses[mine])
            for arguments in ((), ("--address", addresses[mine]), ("--address", f"localhost:{mine}")):
                [shown] = json.loads(ask(*arguments, "--json").stdout)["stacks"]
                assert shown["title"].startswith("model-1 (pid 1,")
                assert [service["pid"] for service in shown["services"]] == [mine, 7, None]
            everything = json.loads(ask("--all", "--json").stdout)["stacks"]
            assert {found["title"].split()[0] for found in everything} == {"model-1", "model-2"}


@pytest.mark.usefixtures("private_runtime_directory")
@pytest.mark.parametrize("has_page", [True, False])
def test_a_processor_without_an_engine_says_so_and_where_it_looks(
    has_page: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.commands.status._TIMEOUT", 60.0)
    missing = {"engines": [f"10.0.0.{last}:50061" for last in range(6)], "detokenizers": []}
    page = {"live_requests": 0, "waiting_requests": 2, "engines": [], "detokenizers": [{}], "missing": missing}
    body = json.dumps(page if has_page else {"of": "another release"}).encode()
    with (
        page_served(body) as metrics,
        engine("127.0.0.1", running=0, state=HealthCheckResponse.NOT_SERVING) as port,
        stack(1, address := f"127.0.0.1:{port}", processor=ProcessState(7, address, metrics)),
    ):
        result = ask("--address", address)
    assert result.return_value == 1
    if has_page:
        assert "requests live 0, requests waiting 2" in result.stdout
        assert "no engine is attached (0 of 6): none at 10.0.0.0:50061, 10.0.0.1:50061" in result.stdout
        assert "and at 2 more" in result.stdout
        assert "detokenizer is attached" not in result.stdout
    else:
        assert "no engine with a detokenizer is attached" in result.stdout


PAGE = {"live_requests": 0, "waiting_requests": 0, "engines": [], "detokenizers": []}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(PAGE | {"live_requests": float("inf"), "missing": {"engines": [], "detokenizers": []}}),
        json.dumps(PAGE | {"missing": {"engines": ["\x1b[2J"], "detokenizers": []}}),
        json.dumps(PAGE | {"missing": {"engines": [5], "detokenizers": []}}),
        "[" * 100_000,
    ],
    ids=["infinite", "control characters", "no address", "deep"],
)
def test_what_is_not_a_live_page_is_not_shown(body: str) -> None:
    with page_served(body.encode()) as metrics:
        assert read_live_page("unix:nowhere", metrics) is None


def test_a_live_page_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.commands._live_page._SECONDS", 0.3)
    page = json.dumps(PAGE | {"missing": {"engines": [], "detokenizers": []}}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connected, _ = listening.accept()
            with connected, suppress(OSError):
                connected.recv(1 << 16)
                connected.sendall(f"HTTP/1.0 200 OK\r\nServer: {server_header('processor')}\r\n\r\n".encode())
                for _ in range(20):
                    connected.sendall(b" ")
                    time.sleep(0.05)
                connected.sendall(page)

        thread = Thread(target=drip)
        thread.start()
        assert read_live_page("unix:nowhere", f"http://127.0.0.1:{listening.getsockname()[1]}/metrics") is None
        thread.join()


@pytest.mark.usefixtures("private_runtime_directory")
def test_a_service_of_a_stack_that_is_being_restarted_is_shown_as_not_running() -> None:
    with stack(1, "127.0.0.1:1"):
        result = ask("--address", "127.0.0.1:1")
    assert result.stdout.count("NOT_RUNNING") == 3
    assert result.return_value == 1


@pytest.mark.usefixtures("private_runtime_directory")
def test_where_nothing_serves_the_address_and_what_to_do_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGLINE_ADDRESS", "127.0.0.1:1")
    with stack(1, "127.0.0.1:2"):
        result = ask()
    assert result.stdout.startswith("nothing serves at 127.0.0.1:1: `ringline serve` starts a server, ")
    assert "--all shows what else runs on this machine (1 stack)" in result.stdout
    assert result.return_value == 1
    assert json.loads(ask("--json").stdout) == {"stacks": []}


@pytest.mark.usefixtures("private_runtime_directory")
@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_a_stack_is_shown_though_none_of_its_services_answers(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it starts, or stands still, which is when people look."""
    monkeypatch.setenv("RINGLINE_ADDRESS", "127.0.0.1:1")
    services = {name: ProcessState(7, "127.0.0.1:1", None) for name in SERVICES}
    services["gateway"] = ProcessState(7, "http://127.0.0.1:1", None)
    with stack(1, "127.0.0.1:1", **services):
        result = ask(*arguments)
    assert result.stdout.startswith("model-1 (pid 1,")
    assert result.stdout.count("UNREACHABLE") == 4
    assert result.return_value == 1


def test_a_named_address_is_shown_where_no_stack_can_be(private_runtime_directory: Path) -> None:
    (private_runtime_directory / "ringline").mkdir(mode=0o755)
    with engine("127.0.0.1", running=0) as port:
        assert ask("--address", f"127.0.0.1:{port}").stdout.count("SERVING") == 1
    with pytest.raises(FatalError, match="is not private to this user"):
        raise ask("--all").exception or AssertionError


@pytest.mark.parametrize("arguments", [("--all", "--address", "127.0.0.1:1"), ("--address", "127.0.0.1:1,nowhere")])
def test_what_cannot_be_asked_is_refused(arguments: tuple[str, ...]) -> None:
    assert isinstance(ask(*arguments).exception, click.UsageError)


def test_a_model_says_what_it_is_for():
    facts = pooling_pb2.PoolingFacts(dimensions=384, prompts={"query": "Q: ", "document": ""})
    reranker = pooling_pb2.PoolingFacts(labels=["LABEL_0"], pair_form=pooling_pb2.PAIR_FORM_SEGMENTS)
    moods = pooling_pb2.PoolingFacts(labels=["glad", "sad"])
    named = {"minilm": facts, "reranker": reranker, "moods": moods, "chat": None}
    models = [
        MessageToDict(pb.Model(name=name, max_model_len=256, pooling=each), preserving_proto_field_name=True)
        for name, each in named.items()
    ]
    text = stack_text(StackStatus("here", [ServiceStatus("processor", "a:1", "SERVING", models=models)]))
    assert text.splitlines()[2:] == [
        "    model minilm: vectors of 384 numbers; prompts document, query; inputs of at most 256 tokens",
        "    model reranker: scores of pairs; inputs of at most 256 tokens",
        "    model moods: 2 labels; inputs of at most 256 tokens",
        "    model chat: 256 tokens",
    ]


def test_adapters_are_shown_where_an_engine_serves_some() -> None:
    states = [
        {"state": {"adapter": {"name": f"a{number:02}", "digest": "1"}, "current": True, "loaded": number % 2 == 0}}
        for number in range(30)
    ]
    states.insert(1, {"state": {"adapter": {"name": "a00", "digest": "2"}}})  # replaced, and kept by requests
    load = {field.name: 0 for field in engine_pb2.Load.DESCRIPTOR.fields} | {"accepted_by_position": []}
    load |= {"adapters_loaded": 15, "adapters_active": 2, "adapter_requests_waiting": 1}
    engine = ServiceStatus("engine", "a:2", "SERVING", load=load, adapters=states)
    plain = ServiceStatus("engine", "a:3", "SERVING", load=load)
    models = [{"name": "m", "max_model_len": 9, "adapters": [{"name": "fr"}, {"name": "de"}]}]
    processor = ServiceStatus("processor", "a:1", "SERVING", models=models)
    lines = stack_text(StackStatus("here", [processor, engine, plain])).split("\n")
    assert "    adapters of m: fr, de" in lines
    (counts,) = [line for line in lines if "adapters known" in line]
    assert counts == "    adapters known 30, in memory 15, in use 2, requests waiting for theirs 1"
    (loaded,) = [line for line in lines if line.startswith("    in memory:")]
    assert loaded.startswith("    in memory: a00, a02, a04,")
    assert loaded.endswith(" and 3 more")
    (others,) = [line for line in lines if line.startswith("    not in memory:")]
    assert others.startswith("    not in memory: a01, a03,")
    assert "    replaced or unloaded: a00" in lines
