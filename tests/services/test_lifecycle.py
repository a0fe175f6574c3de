"""Services that come late, die, drain, or are not read: each in real processes that are killed for real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.ports import HeldPort
from tests.ring import MODEL, ROOT
from tests.services.common.process.test_run import wait_until
from tests.services.poisoned_engine import MAY_FAIL, POISON
from tests.services.streams import Transcript, ask, generate, long_work, read_session

pytestmark = pytest.mark.long

CPU_TIER = ROOT / ".venv-cpu" / "bin" / "python"
ENGINE_FLAGS = ("--model", str(MODEL), "--kv-cache-memory-bytes", "32MiB")


class Services:
    """The three services as processes of their own, on unix sockets and one port, each started when asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = HeldPort()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port.number}"

    def start(self, name: str, *flags: str, python: Path | str = sys.executable, module: str = "services.cli") -> None:
        engine, detokenizer = (f"unix:{self.directory}/{peer}.sock" for peer in ("engine", "detokenizer"))
        own = {
            "engine": ("--uds", engine.removeprefix("unix:"), *ENGINE_FLAGS),
            "detokenizer": ("--uds", detokenizer.removeprefix("unix:"), "--engines", engine),
            "processor": ("--port", str(self.port.number), "--engines", engine, "--detokenizers", detokenizer),
        }[name]
        command = [python, "-m", module, name, "--name", f"{name}-0", "--no-metrics", "--log-format", "json"]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, *own, *flags],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            )

    def wait_for_log(self, name: str, text: str, seconds: float = 200) -> None:
        end = time.monotonic() + seconds
        while text not in (self.directory / f"{name}.log").read_text():
            assert time.monotonic() < end, f"{name} did not log {text!r}"
            time.sleep(0.1)

    def blocks_used_at_last(self, seconds: float = 30) -> int:
        """Of the engine's cache, when it has had the time to hear that nobody wants anything."""
        end = time.monotonic() + seconds
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(f"unix:{self.directory}/engine.sock", options=options) as channel:
            engine = engine_pb2_grpc.EngineServiceStub(channel)
            while True:
                used = engine.GetLoad(engine_pb2.GetLoadRequest(), timeout=20).load.blocks_used
                if not used or time.monotonic() > end:
                    return used
                time.sleep(0.1)

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(90)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self.port.release()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    running = Services(tmp_path)
    yield running
    running.stop()


async def wait_until_serving(address: str, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < end:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2, wait_for_ready=True)
            except grpc.aio.AioRpcError:
                continue
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.05)
    raise AssertionError("not serving")


def long_request(name: str, max_tokens: int) -> inference_pb2.GenerateRequest:
    request = ask(name, max_tokens=max_tokens, temperature=0.9, seed=7)
    request.stopping.ignore_eos = True
    request.output.logprobs = 5
    return request


async def read_until(
    call: grpc.aio.StreamStreamCall,
    transcripts: dict[str, Transcript],
    condition: Callable[[inference_pb2.SessionResponse], bool],
) -> None:
    """Read a session until a frame that is one of those, or brings it about."""
    async with asyncio.timeout(200):
        while True:
            frame = await call.read()
            for response in frame.responses:
                take(transcripts, response)
            if condition(frame):
                return


async def read_until_tokens(call: grpc.aio.StreamStreamCall, transcripts: dict[str, Transcript], count: int) -> None:
    """Read a session until every request has so many tokens."""
    await read_until(call, transcripts, lambda _: all(len(one.ids.get(0, ())) >= count for one in transcripts.values()))


def take(transcripts: dict[str, Transcript], response: inference_pb2.GenerateResponse) -> None:
    if response.HasField("started"):
        assert response.started.identical
    transcripts[response.request_id].add(response)


async def finish(call: grpc.aio.StreamStreamCall, transcripts: dict[str, Transcript]) -> None:
    async with asyncio.timeout(200):
        while not all(one.complete for one in transcripts.values()):
            for response in (await call.read()).responses:
                take(transcripts, response)


async def test_streams_survive_the_death_of_either_peer(services: Services) -> None:
    """They start in the wrong order; then each back tier is killed under load, and the tokens are the same.

    The first engine computes one step after the other; those that follow it overlap them.
    """
    services.start("processor", "--patience", "120", python=CPU_TIER)
    services.start("detokenizer", python=CPU_TIER)
    async with grpc.aio.insecure_channel(services.address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)
        await channel.channel_ready()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(front, ask())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        services.start("engine")
        await wait_until_serving(services.address)
        undisturbed = await generate(front, long_request("", 400))

        for victim, *flags in (("detokenizer",), ("engine", "--async-scheduling"), ("engine", "--async-scheduling")):
            call = front.Session(timeout=250)
            transcripts = {f"r{i}": Transcript() for i in range(4)}
            for name in transcripts:
                await call.write(inference_pb2.SessionRequest(generate=long_request(name, 400)))
            await read_until_tokens(call, transcripts, 5)
            services.kill(victim)
            services.start(victim, *flags, python=CPU_TIER if victim == "detokenizer" else sys.executable)
            await finish(call, transcripts)
            for one in transcripts.values():
                assert one.ends[0].finish_reason == undisturbed.ends[0].finish_reason, one.ends[0]
                assert one.ids == undisturbed.ids
                assert one.texts == undisturbed.texts
                assert one.logprobs == undisturbed.logprobs, "bit for bit"
                assert one.usage.completion_tokens == 400
            call.cancel()
    assert services.blocks_used_at_last() == 0


async def test_requests_end_unavailable_when_no_engine_comes_back(services: Services) -> None:
    for name, flags in (("engine", ()), ("detokenizer", ()), ("processor", ("--patience", "3"))):
        services.start(name, *flags)
    await wait_until_serving(services.address)
    async with grpc.aio.insecure_channel(services.address) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session(timeout=250)
        transcripts = {f"r{i}": Transcript() for i in range(2)}
        for name in transcripts:
            await call.write(inference_pb2.SessionRequest(generate=long_work(name)))
        await read_until_tokens(call, transcripts, 3)
        services.kill("engine")
        await finish(call, transcripts)
        for one in transcripts.values():
            assert {end.error.code for end in one.ends.values()} == {grpc.StatusCode.UNAVAILABLE.value[0]}
            assert one.usage.completion_tokens == sum(map(len, one.ids.values())) >= 3


async def test_what_makes_a_step_raise_is_given_to_no_other_engine(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its very first step: the engine says what it begins, and does not say that it drains."""
    monkeypatch.setenv(MAY_FAIL, str(services.directory / "may-fail"))
    metrics = HeldPort()
    services.start("engine", module="tests.services.poisoned_engine")
    services.start("detokenizer")
    services.start("processor", "--max-crash-resubmits", "1", "--metrics", "--metrics-port", str(metrics.number))
    await wait_until_serving(services.address)
    request = inference_pb2.GenerateRequest(token_ids={"ids": [5, POISON]})
    async with grpc.aio.insecure_channel(services.address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)
        assert (await generate(front, long_request("", 5))).usage.completion_tokens == 5
        transcript = Transcript()
        asking = asyncio.create_task(generate(front, request, transcript))
        await asyncio.to_thread(wait_until, lambda: is_begun(metrics.number))
        (services.directory / "may-fail").touch()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking
    metrics.release()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "died while they had this request" in (caught.value.details() or "")
    assert transcript.usage.completion_tokens == 0
    assert services.processes.pop("engine").wait(90) == 1


def is_begun(metrics_port: int) -> bool:
    """Whether a processor that has one request knows that an engine has begun it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    values = {sample.name: sample.value for family in families for sample in family.samples}
    return (values["ringline_live_requests"], values["ringline_waiting_requests"]) == (1, 0)


async def test_sigterm_drains_and_a_reader_that_stops_loses_its_stream(services: Services) -> None:
    services.start("engine")
    services.start("detokenizer")
    services.start("processor", "--max-unread-bytes", "2MiB")
    await wait_until_serving(services.address)
    options = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
    async with (
        grpc.aio.insecure_channel(services.address, options=options) as narrow,
        grpc.aio.insecure_channel(services.address) as channel,
    ):
        # A client that never reads: its window fills, and when too much waits for it, its session goes.
        deaf = inference_pb2_grpc.InferenceServiceStub(narrow).Session(timeout=250)
        for index in range(40):
            request = long_request(f"r{index}", 1500)
            request.output.logprobs = 20
            await deaf.write(inference_pb2.SessionRequest(generate=request))
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session(timeout=250)
        await call.write(inference_pb2.SessionRequest(generate=long_request("beside", 200)))
        beside = await read_session(call, ["beside"])
        assert beside["beside"].usage.completion_tokens == 200
        await asyncio.to_thread(services.wait_for_log, "processor", "client stalled")

        # SIGTERM: what is under way goes on to its end, then the process exits 0.
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session(timeout=250)
        transcripts = {"last": Transcript()}
        services.processes["engine"].send_signal(signal.SIGSTOP)  # it cannot end before the processor is told
        await call.write(inference_pb2.SessionRequest(generate=long_request("last", 300)))
        await read_until(call, transcripts, lambda _: transcripts["last"].admitted is not None)
        services.processes["processor"].send_signal(signal.SIGTERM)
        await read_until(call, transcripts, lambda frame: frame.HasField("draining"))
        services.processes["engine"].send_signal(signal.SIGCONT)
        await finish(call, transcripts)
        assert transcripts["last"].usage.completion_tokens == 300
        assert services.processes.pop("processor").wait(90) == 0
    for name in ("detokenizer", "engine"):
        assert services.kill(name, signal.SIGTERM) == 0


def test_serve_ends_with_one_readable_error_for_a_missing_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.cli", "serve", str(tmp_path), "--port", "0", "--no-metrics"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Traceback" not in output
    assert "config.json" in output
