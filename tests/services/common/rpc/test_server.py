"""The life of a server: what its callers see while it loads, serves, drains and fails."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.common.config.errors import FatalError
from services.common.config.settings import ServerSettings
from services.common.links.channels import Endpoint, check_health, wait_serving
from services.common.rpc.health import LIVENESS
from services.common.rpc.server import Server
from services.common.rpc.shared_messages import status_from_proto
from services.ring.errors import Code, Reason, Refused
from tests.ports import HeldPort

SERVICE = "ringline.inference.v1.InferenceService"
SMALL_SERVICE = Path(__file__).with_name("small_service.py")
SECONDS = 60.0
"""For which whoever asks for health waits: a server may stand still for a while."""


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Answers, refuses and breaks, in both ways that a handler can be written."""

    def __init__(self):
        self.seen = []
        self.closed = asyncio.Event()

    async def Tokenize(self, request, context):
        if request.text == "break":
            raise KeyError("a secret")
        if request.text == "refuse":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
        if request.text == "refuse twice":
            with pytest.raises(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
            await context.abort(grpc.StatusCode.UNKNOWN, "once more")
        if request.text == "refuse and break":
            with pytest.raises(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
            raise KeyError("a secret")
        return inference_pb2.TokenizeResponse(rendered=request.text)

    async def Generate(self, request, context):
        if request.request_id == "on and on":
            task = asyncio.current_task()
            try:
                while True:
                    yield inference_pb2.GenerateResponse(request_id="x" * (1 << 20))
            finally:
                self.seen.append("in its own task" if asyncio.current_task() is task else "later")
                self.closed.set()
        yield inference_pb2.GenerateResponse(request_id=request.request_id)
        if request.request_id == "break":
            raise KeyError("a secret")

    async def Session(self, request_iterator, context):
        async for request in request_iterator:
            self.seen.append(request.WhichOneof("frame"))
            await context.write(inference_pb2.SessionResponse())


@asynccontextmanager
async def serving(settings=None, authorizers=()):
    """A started server with ``Inference``, and a channel to it."""
    server = Server(settings or ServerSettings(), [SERVICE], authorizers=authorizers)
    servicer = Inference()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    try:
        async with Endpoint(server.address).open() as channel:
            yield server, channel, servicer
    finally:
        await server.stop()


async def test_health_follows_the_service_and_ends_with_it():
    async with serving() as (server, channel, _):
        assert await check_health(channel, seconds=SECONDS) == "NOT_SERVING"
        waiting = asyncio.create_task(wait_serving(Endpoint(server.address)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await server.set_serving(True)
        await asyncio.wait_for(waiting, 30)
        assert await check_health(channel, SERVICE, SECONDS) == "SERVING"
        assert await check_health(channel, "no.such.Service", SECONDS) == "SERVICE_UNKNOWN"
    async with Endpoint(server.address).open() as channel:
        assert await check_health(channel, seconds=0.5) == "UNREACHABLE"


async def test_a_server_that_is_waited_for_is_seen_however_long_its_channel_would_pause(monkeypatch):
    """gRPC pauses longer after each attempt that fails, and an engine binds seconds after its start."""
    pauses = [("grpc.initial_reconnect_backoff_ms", 600_000), ("grpc.max_reconnect_backoff_ms", 600_000)]
    monkeypatch.setattr("services.common.links.channels.channel_options", lambda _: pauses)
    port = HeldPort()
    waiting = asyncio.create_task(wait_serving(Endpoint(f"127.0.0.1:{port.number}")))
    await asyncio.sleep(0.2)  # some attempts fail
    async with serving(ServerSettings(port=port.number)) as (server, _, _):
        await server.set_serving(True)
        await asyncio.wait_for(waiting, 30)
    port.release()


async def test_reflection_names_the_services():
    async with serving() as (_, channel, _):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_an_unexpected_error_is_internal_and_tells_nothing():
    async with serving() as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [
            stub.Tokenize(inference_pb2.TokenizeRequest(text="break")),
            drained(stub.Generate(inference_pb2.GenerateRequest(request_id="break"))),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in caught.value.details()


async def test_a_status_that_a_handler_chose_and_an_answer_pass_through():
    async with serving() as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="refuse"))
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
        assert (await stub.Tokenize(inference_pb2.TokenizeRequest(text="hello"))).rendered == "hello"
        answers = await drained(stub.Generate(inference_pb2.GenerateRequest(request_id="r")))
        assert [answer.request_id for answer in answers] == ["r"]


def details_of(error):
    """The reason, and the field that is to blame."""
    status = status_from_proto(status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"]))
    return status.reason, status.field


def logged(caplog):
    """What was logged here. gRPC brings the end of a call that an earlier test left to whichever loop runs now."""
    return [one for one in caplog.records if not one.exc_info or str(one.exc_info[1]) != "Event loop is closed"]


@pytest.mark.parametrize(("request_text", "tracebacks"), [("refuse twice", 0), ("refuse and break", 1)])
async def test_what_fails_after_the_status_was_sent_changes_nothing_and_is_logged_at_most_once(
    request_text, tracebacks, caplog, capsys
):
    async with serving() as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text=request_text))
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
        answer = await stub.Tokenize(inference_pb2.TokenizeRequest(text="hello"))
        assert answer.rendered == "hello"
    printed = "".join(capsys.readouterr())
    assert (logged(caplog), printed.count("unexpected error in an RPC")) == ([], tracebacks)


BROKEN_UTF8 = inference_pb2.TokenizeRequest(text="abcd").SerializeToString().replace(b"abcd", b"\xff\xfe\xfd\xfc")


@pytest.mark.parametrize("data", [b"\xff\xff\xff", BROKEN_UTF8])
async def test_a_single_message_that_is_none_is_an_invalid_argument(data):
    async with serving() as (_, channel, _):
        for make, method in ((channel.unary_unary, "Tokenize"), (channel.unary_stream, "Generate")):
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be parsed") as caught:
                await drained(make(f"/{SERVICE}/{method}")(data))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_malformed_frame_ends_its_own_stream_after_those_before_it():
    async with serving() as (_, channel, servicer):
        good = inference_pb2.SessionRequest(cancel=inference_pb2.CancelRequest(request_id="r")).SerializeToString()
        undisturbed = channel.stream_stream(f"/{SERVICE}/Session")()
        await undisturbed.write(good)
        await undisturbed.read()
        session = channel.stream_stream(f"/{SERVICE}/Session")()
        for data in (good, b"\xff\xff\xff"):
            await session.write(data)
        with pytest.raises(grpc.aio.AioRpcError, match="cannot be parsed") as caught:
            await drained(session)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await undisturbed.write(good)
        assert await undisturbed.read() == b""
        assert servicer.seen == ["cancel"] * 3


async def test_a_message_above_the_limit_ends_its_own_call():
    async with serving(ServerSettings(max_message_bytes=2 * 2**20)) as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * (2 * 2**20)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * 2**20))).rendered == "x" * 2**20


async def test_a_client_that_cancels_is_not_an_error(caplog):
    async with serving() as (_, channel, _):
        session = channel.stream_stream(f"/{SERVICE}/Session")()
        await session.write(b"")
        await session.read()
        session.cancel()
        assert await session.code() is grpc.StatusCode.CANCELLED
    assert not logged(caplog)


async def test_a_generator_is_closed_while_its_call_is_there():
    """Closed later, as gRPC leaves it to be, what it asks its context ends the process."""
    async with serving() as (_, channel, servicer):
        call = channel.unary_stream(f"/{SERVICE}/Generate")(
            inference_pb2.GenerateRequest(request_id="on and on").SerializeToString()
        )
        await call.read()
        await asyncio.sleep(0.1)  # likely it waits for room on the connection then
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), SECONDS)
        assert servicer.seen == ["in its own task"]


async def test_malformed_messages_are_logged_once_a_second(capsys):
    async with serving() as (_, channel, _):
        calls = [
            channel.unary_unary(f"/{SERVICE}/Tokenize"),
            channel.unary_unary("/grpc.health.v1.Health/Check"),
            channel.unary_stream("/grpc.health.v1.Health/Watch"),
        ]
        for make in calls * 10:
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be parsed"):
                await drained(make(b"\xff\xff\xff"))
    told = [line for line in "".join(capsys.readouterr()).splitlines() if "malformed message" in line]
    assert told
    assert len(told) < 30, "unless each took a second"
    assert "not_logged_before=0" in told[0]


async def test_a_taken_port_is_refused_in_words():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FatalError, match=f"^port {port} is in use: choose another with --port$"):
            await Server(ServerSettings(port=port), []).start()


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
async def test_a_host_that_is_not_this_machine_is_refused_in_words(host):
    with pytest.raises(FatalError, match="with --host"):
        await Server(ServerSettings(host=host), []).start()


async def test_two_servers_cannot_share_a_port_or_a_socket(tmp_path):
    path = str(tmp_path / "s")
    async with serving(ServerSettings(uds=path)) as (server, channel, _):
        for settings, words in (
            (ServerSettings(uds=path), "is in use"),
            (ServerSettings(uds=f"{path}/no/s"), "no dir"),
        ):
            with pytest.raises(FatalError, match=words):
                await Server(settings, []).start()
        assert await check_health(channel, seconds=SECONDS) == "NOT_SERVING"
        assert server.address == f"unix:{path}"
    assert list(tmp_path.iterdir()) == []


async def test_the_socket_of_a_dead_process_is_taken_over_but_a_file_is_not(tmp_path):
    stale, file = tmp_path / "stale", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    file.write_text("precious")
    async with serving(ServerSettings(uds=str(stale))) as (_, channel, _):
        assert await check_health(channel, seconds=SECONDS) == "NOT_SERVING"
    with pytest.raises(FatalError, match="is no socket"):
        await Server(ServerSettings(uds=str(file)), []).start()
    assert file.read_text() == "precious"


async def drained(call):
    """Every answer of a call, or its error."""
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        return [await call]
    answers = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        answers.append(answer)
    if await call.code() is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
    return answers


class Process:
    """A running ``small_service.py`` that serves."""

    def __init__(self, place, drain_seconds=0.0):
        command = [sys.executable, SMALL_SERVICE, str(place), str(drain_seconds)]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.records = []
        self.address = self.until("serving")["address"]

    def until(self, event):
        """Read its log until ``event``."""
        for line in self.popen.stderr:
            self.records.append(json.loads(line))
            if self.records[-1]["event"] == event:
                return self.records[-1]
        raise AssertionError(f"no {event}: {self.records}")

    def end(self):
        """Wait for its end: the exit code, and the rest of its log."""
        _, rest = self.popen.communicate(timeout=250)
        return self.popen.returncode, rest


def test_a_signal_drains_with_health_saying_so_while_open_streams_go_on():
    process = Process("0", drain_seconds=30.0)
    with grpc.insecure_channel(process.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="small.Service"))
        statuses = [next(watch).status]
        process.popen.send_signal(signal.SIGTERM)
        statuses.append(next(watch).status)
        process.popen.send_signal(signal.SIGHUP)
        assert statuses == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
        code, rest = process.end()
    assert code == 0
    events = [json.loads(line)["event"] for line in rest.splitlines()]  # nothing but records: no traceback
    assert events == ["draining", "drain begins", "drain ends"]


def test_a_second_signal_ends_at_once():
    process = Process("0", drain_seconds=30.0)
    process.popen.send_signal(signal.SIGINT)
    process.until("drain begins")
    process.popen.send_signal(signal.SIGINT)
    code, rest = process.end()
    assert code == 128 + signal.SIGINT
    assert "drain ends" not in rest


def test_a_service_can_end_itself_with_a_code():
    process = Process("0")
    process.popen.send_signal(signal.SIGUSR1)
    code, rest = process.end()
    assert code == 7
    assert "drain ends" in rest


def test_a_failure_during_a_drain_decides_the_code():
    process = Process("0", drain_seconds=30.0)
    process.popen.send_signal(signal.SIGTERM)
    process.until("drain begins")
    process.popen.send_signal(signal.SIGUSR1)
    process.popen.send_signal(signal.SIGHUP)
    code, rest = process.end()
    assert code == 7
    assert "drain ends" in rest


def test_work_that_fails_ends_the_process_with_its_traceback_in_the_log(tmp_path):
    process = Process(tmp_path / "s")
    process.popen.send_signal(signal.SIGUSR2)
    record = process.until("unexpected error")
    assert "RuntimeError: it broke" in record["exception"]
    assert process.end() == (1, "")
    assert not (tmp_path / "s").exists()


def test_a_port_in_use_ends_a_process_with_one_line_and_no_traceback():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, SMALL_SERVICE, str(port)], capture_output=True, text=True, timeout=250, check=False
        )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, json.loads(line)["error"]) == (3, f"port {port} is in use: choose another with --port")


async def test_a_process_is_alive_from_its_first_moment_through_its_drain_until_it_hangs():
    async with serving() as (server, channel, _):
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=LIVENESS), timeout=SECONDS
        )

        async def health():
            pages = [(page.status(), page.body()) for page in server.health.pages.values()]
            return await check_health(channel, seconds=SECONDS), await check_health(channel, LIVENESS, SECONDS), *pages

        good, bad = (200, b"SERVING\n"), (503, b"NOT_SERVING\n")
        assert await health() == ("NOT_SERVING", "SERVING", bad, good)
        await server.set_serving(True)
        assert await health() == ("SERVING", "SERVING", good, good)
        await server.health.drain()
        await server.set_serving(True)
        assert await health() == ("NOT_SERVING", "SERVING", bad, good)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.health.set_hung()
        assert await health() == ("NOT_SERVING", "NOT_SERVING", bad, bad)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_keeps_no_name_that_no_service_has():
    async with serving() as (_, channel, _):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="x" * 1000)
        for call in (stub.Check(request, timeout=30), stub.Watch(request, timeout=30).read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details_of(caught.value) == (Reason.INVALID_FIELD, "service")


async def test_who_is_not_let_in_is_told_before_a_message_is_taken():
    def admit(context, method):
        if not dict(context.invocation_metadata()).get("key"):
            raise Refused(Code.UNAUTHENTICATED, "no key")

    async def nothing():
        await asyncio.Event().wait()
        yield b""

    async def raw(method, requests, **shown):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_unary(f"/{SERVICE}/{method}")(requests, timeout=30, **shown)
        return caught.value.code(), details_of(caught.value)[0]

    unauthenticated = grpc.StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED
    invalid = grpc.StatusCode.INVALID_ARGUMENT, Reason.INVALID_FIELD
    key = {"metadata": (("key", "it"),)}
    async with serving(authorizers=[admit]) as (_, channel, _):
        for method in ("Tokenize", "Generate", "Session"):
            assert await raw(method, nothing()) == unauthenticated
            assert await raw(method, iter([b"\xff"])) == unauthenticated
            assert await raw(method, iter([b"\xff"]), **key) == invalid
        assert await raw("Tokenize", iter([]), **key) == invalid
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert (await stub.Tokenize(inference_pb2.TokenizeRequest(text="a"), **key)).rendered == "a"
        generated = [
            one.request_id async for one in stub.Generate(inference_pb2.GenerateRequest(request_id="1"), **key)
        ]
        assert generated == ["1"]
