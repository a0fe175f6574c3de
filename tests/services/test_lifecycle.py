"""Services that come late, die, drain, or are not read: each in real processes that are killed for real."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.ports import HeldPort
from tests.processes import THIS, Process, Release
from tests.ring import MODEL, ROOT, metric_values
from tests.services.failing_engine import MAY_FAIL, POISON
from tests.services.streams import Transcript, ask, generate, long_work, read_session, read_until, send
from tests.waiting import until

pytestmark = pytest.mark.long

CPU_TIER = replace(THIS, python=ROOT / ".venv-cpu" / "bin" / "python")
ENGINE_FLAGS = ("--model", str(MODEL), "--kv-cache-memory-bytes", "32MiB")


class Services:
    """The three services as processes of their own, on unix sockets and one port, each started when asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = HeldPort()
        self.processes: dict[str, Process] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port.number}"

    def start(self, name: str, *flags: str, release: Release = THIS) -> None:
        engine, detokenizer = (f"unix:{self.directory}/{peer}.sock" for peer in ("engine", "detokenizer"))
        address, own = {
            "engine": (engine, ENGINE_FLAGS),
            "detokenizer": (detokenizer, ("--engines", engine)),
            "processor": (self.address, ("--engines", engine, "--detokenizers", detokenizer)),
        }[name]
        log = self.directory / f"{name}.log"
        self.processes[name] = Process(f"{name}-0", address, log, ["--no-metrics", *own, *flags], release)
        self.processes[name].start()

    async def wait_serving(self) -> None:
        await self.processes["processor"].wait_serving()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.port.release()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    running = Services(tmp_path)
    yield running
    running.stop()


def long_request(name: str, max_tokens: int, logprobs: int = 5) -> inference_pb2.GenerateRequest:
    return ask(name, max_tokens=max_tokens, temperature=0.9, seed=7, ignore_eos=True, logprobs=logprobs)


async def read_until_tokens(call: grpc.aio.StreamStreamCall, transcripts: dict[str, Transcript], count: int) -> None:
    """Read a session until every request has so many tokens."""
    await read_until(call, transcripts, lambda: all(len(one.ids.get(0, ())) >= count for one in transcripts.values()))


async def finish(call: grpc.aio.StreamStreamCall, transcripts: dict[str, Transcript]) -> None:
    async with asyncio.timeout(200):
        await read_session(call, transcripts, transcripts)
    assert all(started.identical for one in transcripts.values() for started in one.started)


async def test_streams_survive_the_death_of_either_peer(services: Services) -> None:
    """They start in the wrong order; then each back tier is killed under load, and the tokens are the same.

    The first engine computes one step after the other; the one that follows it overlaps them.
    """
    services.start("processor", "--patience", "120", release=CPU_TIER)
    services.start("detokenizer", release=CPU_TIER)
    async with grpc.aio.insecure_channel(services.address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)
        await channel.channel_ready()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(front, ask())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        services.start("engine")
        await services.wait_serving()
        undisturbed = await generate(front, long_request("", 200))

        for victim, *flags in (("detokenizer",), ("engine", "--async-scheduling")):
            call = front.Session(timeout=250)
            transcripts = {f"r{i}": Transcript() for i in range(4)}
            await send(call, *(long_request(name, 200) for name in transcripts))
            await read_until_tokens(call, transcripts, 5)
            services.processes[victim].kill()
            services.start(victim, *flags, release=CPU_TIER if victim == "detokenizer" else THIS)
            await finish(call, transcripts)
            for one in transcripts.values():
                assert one.ends[0].finish_reason == undisturbed.ends[0].finish_reason, one.ends[0]
                assert one.ids == undisturbed.ids
                assert one.texts == undisturbed.texts
                assert one.logprobs == undisturbed.logprobs, "bit for bit"
                assert one.usage.completion_tokens == 200
            call.cancel()
    async with asyncio.timeout(30):  # for the engine to hear that nobody wants anything
        while (await services.processes["engine"].held()).blocks:  # noqa: ASYNC110 - it says so only when asked
            await asyncio.sleep(0.1)


async def test_requests_end_unavailable_when_no_engine_comes_back(services: Services) -> None:
    for name, flags in (("engine", ()), ("detokenizer", ()), ("processor", ("--patience", "3"))):
        services.start(name, *flags)
    await services.wait_serving()
    async with grpc.aio.insecure_channel(services.address) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session(timeout=250)
        transcripts = {f"r{i}": Transcript() for i in range(2)}
        await send(call, *map(long_work, transcripts))
        await read_until_tokens(call, transcripts, 3)
        services.processes["engine"].kill()
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
    services.start("engine", release=replace(THIS, module="tests.services.failing_engine"))
    services.start("detokenizer")
    services.start("processor", "--max-crash-resubmits", "1", "--metrics", "--metrics-port", str(metrics.number))
    await services.wait_serving()
    request = inference_pb2.GenerateRequest(token_ids={"ids": [5, POISON]})
    async with grpc.aio.insecure_channel(services.address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)
        assert (await generate(front, long_request("", 5))).usage.completion_tokens == 5
        transcript = Transcript()
        asking = asyncio.create_task(generate(front, request, transcript))
        live, waiting = "ringline_live_requests", "ringline_waiting_requests"
        while True:  # until the processor knows that an engine has begun it
            values = await asyncio.to_thread(metric_values, f"http://127.0.0.1:{metrics.number}/metrics")
            if (values[live], values[waiting]) == (1, 0):
                break
            await asyncio.sleep(0.01)
        (services.directory / "may-fail").touch()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking
    metrics.release()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "died while they had this request" in (caught.value.details() or "")
    assert transcript.usage.completion_tokens == 0
    assert services.processes["engine"].wait() == 1


async def test_sigterm_drains_and_a_reader_that_stops_loses_its_stream(services: Services) -> None:
    services.start("engine")
    services.start("detokenizer")
    services.start("processor", "--max-unread-bytes", "2MiB")
    await services.wait_serving()
    options = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
    async with (
        grpc.aio.insecure_channel(services.address, options=options) as narrow,
        grpc.aio.insecure_channel(services.address) as channel,
    ):
        # A client that never reads: its window fills, and when too much waits for it, its session goes.
        deaf = inference_pb2_grpc.InferenceServiceStub(narrow).Session(timeout=250)
        await send(deaf, *(long_request(f"r{index}", 1500, logprobs=20) for index in range(40)))
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session(timeout=250)
        await send(call, long_request("beside", 200))
        beside = await read_session(call, ["beside"])
        assert beside["beside"].usage.completion_tokens == 200
        processor, engine = services.processes["processor"], services.processes["engine"]
        await until(lambda: "client stalled" in processor.log.read_text(), 200)

        # SIGTERM: what is under way goes on to its end, then the process exits 0.
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session(timeout=250)
        transcripts = {"last": Transcript()}
        engine.signal(signal.SIGSTOP)  # it cannot end before the processor is told
        await send(call, long_request("last", 300))
        await read_until(call, transcripts, lambda: transcripts["last"].admitted)
        processor.signal(signal.SIGTERM)
        while not (await call.read()).HasField("draining"):
            pass
        engine.signal(signal.SIGCONT)
        await finish(call, transcripts)
        assert transcripts["last"].usage.completion_tokens == 300
        assert processor.wait() == 0
    for name in ("detokenizer", "engine"):
        assert await services.processes[name].drain() == 0
