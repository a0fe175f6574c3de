"""Requests with adapters on an Attach stream: what the core gets, what peers are told, and what is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import adapter_pb2

from engine_core.config import ModelSpec
from engine_core.errors import AdapterError
from engine_core.lora.support import LoRASupport
from engine_core.request import Request
from engine_core.scheduling.stats import SchedulerStats
from services.common.rpc.shared_messages import hello_message
from services.engine.async_engine import AsyncEngine
from services.engine.attach_stream import Attachment
from services.engine.service import EngineService
from services.engine.step_loop import StepReport
from services.ring.errors import Code, Reason, Refused
from services.ring.events import FinishReason
from services.ring.identity import ADAPTERS, ENGINE_CAPABILITIES, PeerId
from tests.services.engine.adapters.adapter_files import adapter_file, read_file, write_adapter
from tests.waiting import until
from text_core.grammar.lark import literal

ME = PeerId("engine-0", 1)


class Loop:
    """In the place of the step loop."""

    def __init__(self) -> None:
        self.added: dict[str, Request] = {}

    def add(self, core_id: str, request: Request) -> None:
        self.added[core_id] = request

    def cancel(self, core_id: str, choice: int | None) -> bool:
        return True


class Engine(AsyncEngine):
    """Knows the adapters a, b and c, and loads them once ``go`` is set."""

    def __init__(self, *, serves: bool = True, max_loras: int = 2, lora_dir: str | None = None) -> None:
        super().__init__(orphan_grace=0.0, max_ledgers=100)
        self.go = threading.Event()
        self.broken = ""
        """Path of the adapter that cannot be loaded."""
        self.loop = self.step_loop = Loop()  # type: ignore[assignment]
        self.model = ModelSpec("base", "M", 100, 50, eos_token_ids=(1,), dtype="float32")
        self.capabilities = ENGINE_CAPABILITIES
        self.use_grammars(lambda grammar: None, literal)
        if serves:
            self.capabilities = (*ENGINE_CAPABILITIES, ADAPTERS)
            support = LoRASupport(None, None, max_loras, 3, 1000)  # type: ignore[arg-type]
            self.use_adapters(self, support, read_file, max_waiting=100, lora_dir=lora_dir)
            for name in "abc":
                self.adapters.registry.put(name, adapter_file(name), f"/{name}")

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        assert self.go.wait(10)
        if path == self.broken:
            raise AdapterError("the file has changed")

    def unload_adapter(self, adapter_id: int) -> None: ...

    @property
    def quiet(self) -> bool:
        """Nothing is left of any request."""
        users = {core_id for each in self.adapters.registry.known() for core_id in each.users}
        return not (
            users
            or self.registry.num_ledgers
            or self.registry._in_core
            or self.grammars
            or self.adapter_queue
            or self.adapter_queue.num_active
        )


class Peer:
    """Says what it is told to say, and keeps what it reads."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.read_frames = engine_pb2.AttachResponse()
        self.largest = 0
        """States in one frame."""
        self._ordinal = 0

    async def read(self) -> bytes:
        return await self._frames.get()

    async def write(self, frame: engine_pb2.AttachResponse) -> None:
        self.largest = max(self.largest, len(frame.adapters.states))
        self.read_frames.MergeFrom(frame)

    def hello(self, *capabilities: str) -> None:
        hello = hello_message(PeerId("p", 1))
        hello.capabilities.extend(capabilities)
        self._frames.put_nowait(engine_pb2.AttachRequest(hello=hello).SerializeToString())

    def send(self, **command: Any) -> None:
        frame = engine_pb2.AttachRequest(commands=[engine_pb2.Command(**command)])
        self._frames.put_nowait(frame.SerializeToString())

    def submit(self, name: str, number: int = 1, digest: str | None = None, epoch: int = 1, **fields: Any) -> None:
        adapter = adapter_pb2.Adapter(name=name, digest=adapter_file(name).digest if digest is None else digest)
        given = {"prompt_token_ids": [2, 3], "max_tokens": 4, "adapter": adapter, **fields}
        self.send(submit=engine_pb2.Submit(request_id=f"1-{number}", epoch=epoch, **given))

    def done(self, number: int = 1, epoch: int = 1) -> None:
        self.send(done=engine_pb2.Done(request_id=f"1-{number}", epoch=epoch))

    @property
    def rejections(self) -> list[Any]:
        return list(self.read_frames.rejections)

    @property
    def told(self) -> dict[tuple[str, str], tuple[bool, bool]]:
        """What it knows of each adapter; no test here tells it of one that is gone."""
        assert not self.read_frames.adapters.gone
        return {
            (state.adapter.name, state.adapter.digest): (state.current, state.loaded)
            for state in self.read_frames.adapters.states
        }


@asynccontextmanager
async def attached(engine: Engine, *capabilities: str) -> AsyncIterator[Peer]:
    peer = Peer()
    attachment = Attachment(engine, ME, engine_pb2.Load, stall_timeout=1e6, max_message_bytes=1 << 22)
    stream = asyncio.create_task(attachment.run(peer, peer))  # type: ignore[arg-type]
    peer.hello(*capabilities)
    try:
        await until(lambda: peer.read_frames.HasField("load"))
        yield peer
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def test_a_request_reaches_the_core_with_its_adapter_and_its_grammar() -> None:
    engine = Engine()
    engine.go.set()
    async with attached(engine) as peer:
        peer.submit("a")
        peer.submit("a", 2, constraint={"regex": "[ab]+"}, requires=["adapters", "constraint"])
        peer.submit("b", 3)
        await until(lambda: len(engine.loop.added) == 3)
        requests = {core_id.split("@")[0]: request for core_id, request in engine.loop.added.items()}
        assert requests["1-1"].adapter == requests["1-2"].adapter
        assert requests["1-1"].adapter.digest == adapter_file("a").digest
        assert requests["1-3"].adapter.digest == adapter_file("b").digest
        assert requests["1-1"].params.grammar is None
        assert "[ab]" in requests["1-2"].params.grammar
        for number in (1, 2, 3):
            peer.done(number)
        for core_id in engine.loop.added:
            await until(lambda: not engine.registry.num_ledgers)
            engine.report(StepReport([], cancelled=[(core_id, None)]))
        assert engine.quiet
        assert engine.adapter_queue.num_loaded == 2


async def test_what_ends_while_it_waits_for_its_adapter_leaves_nothing_behind() -> None:
    engine = Engine()
    async with attached(engine) as peer:
        peer.submit("a")
        peer.submit("a", epoch=2)
        peer.submit("b", 2, sampling={"n": 2})
        peer.submit("b", 3, constraint={"regex": "[ab]+"})
        await until(lambda: len(engine.adapter_queue) == 3)
        assert not engine.loop.added
        peer.send(cancel=engine_pb2.Cancel(request_id="1-2", epoch=1))
        await until(lambda: len(peer.read_frames.outputs.finished) == 2)
        assert {each.finish_reason for each in peer.read_frames.outputs.finished} == {FinishReason.CANCELLED}
        for number, epoch in ((1, 2), (2, 1), (3, 1)):
            peer.done(number, epoch)
        await until(lambda: not engine.registry.num_ledgers)
        engine.go.set()
        await until(lambda: engine.quiet)
        peer.submit("c", 4)
        await until(lambda: engine.loop.added)
    engine.registry.expire(time.monotonic() + 1)  # the peer is gone
    assert len(engine.loop.added) == 1
    engine.report(StepReport([], cancelled=[(next(iter(engine.loop.added)), None)]))
    assert engine.quiet


async def test_a_deadline_passes_while_a_request_waits_for_its_adapter() -> None:
    engine = Engine()
    async with attached(engine) as peer:
        peer.submit("a", sampling={"n": 2}, timeout_ms=10)
        await until(lambda: len(peer.read_frames.outputs.finished) == 2)
        assert {each.finish_reason for each in peer.read_frames.outputs.finished} == {FinishReason.DEADLINE}
        peer.done()
        engine.go.set()
        await until(lambda: engine.quiet)
        assert not engine.loop.added


async def test_requests_for_what_is_not_known_or_cannot_be_loaded_are_rejected() -> None:
    engine = Engine()
    engine.broken = "/b"
    engine.go.set()
    async with attached(engine) as peer:
        peer.submit("a", 1, digest=adapter_file("other").digest)
        peer.submit("x", 2)
        peer.submit("b", 3)
        peer.submit("a", 4, digest="a")
        await until(lambda: len(peer.rejections) == 4)
        by_id = {each.request_id: each for each in peer.rejections}
        codes = [by_id[f"1-{number}"].status.code for number in (1, 2, 3, 4)]
        assert codes == [Code.FAILED_PRECONDITION] * 3 + [Code.INVALID_ARGUMENT]
        assert "the file has changed" in by_id["1-3"].status.message
        assert by_id["1-3"].in_reply_to == 3
        assert engine.quiet


async def test_an_engine_without_adapters_refuses_them_and_tells_nothing() -> None:
    engine = Engine(serves=False)
    async with attached(engine, ADAPTERS) as peer:
        peer.submit("a")
        await until(lambda: peer.rejections)
        assert "'adapters' is not known here" in peer.rejections[0].status.message
        assert not peer.read_frames.HasField("adapters")
        assert ADAPTERS not in peer.read_frames.welcome.capabilities


async def test_a_replaced_adapter_stays_for_those_who_have_it_or_began_with_it() -> None:
    engine = Engine()
    engine.go.set()
    old, new = adapter_file("a").digest, adapter_file("new").digest
    async with attached(engine, ADAPTERS) as peer:
        peer.submit("a")
        await until(lambda: engine.loop.added)
        engine.adapters.registry.put("a", adapter_file("new"), "/new")
        peer.submit("a", 2, digest=new)
        peer.submit("a", 3, digest=old, resume=[{"choice": 0, "token_ids": [7]}])
        await until(lambda: len(engine.loop.added) == 3)
        assert [each.adapter.digest for each in engine.loop.added.values()] == [old, old, new]
        await until(lambda: peer.told.get(("a", new)) == (True, True))
        assert peer.told["a", old] == (False, True)


async def test_peers_that_can_are_told_of_adapters_in_frames_of_bounded_size() -> None:
    engine = Engine()
    engine.go.set()
    for number in range(300):
        engine.adapters.registry.put(f"n{number}", adapter_file(str(number)), "/n")
    async with attached(engine, ADAPTERS) as peer:
        await until(lambda: len(peer.told) == 303)
        assert not peer.read_frames.adapters.complete
        engine.adapters.registry.complete()
        await until(lambda: peer.read_frames.adapters.complete)
        assert peer.largest == 256
        peer.submit("a")
        await until(lambda: peer.told["a", adapter_file("a").digest] == (True, True))
    assert not engine.adapters.registry._told, "it is told no more"
    async with attached(engine) as peer:
        engine.adapters.registry.put("d", adapter_file("d"), "/d")
        engine.push_load()
        await asyncio.sleep(0.01)
        assert not peer.read_frames.HasField("adapters"), "it did not say that it can"


async def served(engine: Engine) -> EngineService:
    service = EngineService(engine, ME, stall_timeout=1.0, max_message_bytes=1 << 22, drain=lambda grace: None)
    service.serve(engine_pb2.GetModelResponse(model="base"), {})
    return service


async def test_adapters_are_loaded_listed_and_unloaded_by_calls(tmp_path) -> None:
    engine = Engine(lora_dir=str(tmp_path))
    write_adapter(tmp_path / "x", "x")
    service = await served(engine)
    context: Any = None
    request = engine_pb2.LoadAdapterRequest(name="x", path="x").SerializeToString()
    loaded = await service.LoadAdapter(request, context)
    assert (loaded.adapter.name, loaded.adapter.digest) == ("x", adapter_file("x").digest)
    model = engine_pb2.GetModelResponse.FromString(await service.GetModel(b"", context))
    assert [each.name for each in model.adapters] == ["a", "b", "c", "x"]
    page = await service.ListAdapters(engine_pb2.ListAdaptersRequest(after="b", limit=1).SerializeToString(), context)
    assert [each.state.adapter.name for each in page.adapters] == ["c"]
    assert page.more
    with pytest.raises(Refused, match="limit: 1001 is out of range"):
        await service.ListAdapters(engine_pb2.ListAdaptersRequest(limit=1001).SerializeToString(), context)
    async with attached(engine) as peer:
        peer.submit("x")
        await until(lambda: len(engine.adapter_queue))
        page = await service.ListAdapters(engine_pb2.ListAdaptersRequest(after="c").SerializeToString(), context)
        [listed] = page.adapters
        assert (listed.live_requests, listed.rank, listed.base_model) == (1, 8, "base")
        unloaded = await service.UnloadAdapter(request, context)  # the fields are numbered alike
        assert unloaded.live_requests == 1
        model = engine_pb2.GetModelResponse.FromString(await service.GetModel(b"", context))
        assert [each.name for each in model.adapters] == ["a", "b", "c"]
        engine.go.set()
        await until(lambda: engine.loop.added)


async def test_an_engine_without_adapters_refuses_calls_about_them() -> None:
    service = await served(Engine(serves=False))
    with pytest.raises(Refused, match="--enable-lora") as refusal:
        await service.ListAdapters(b"", None)  # type: ignore[arg-type]
    assert refusal.value.status.reason == Reason.CAPABILITY_MISSING


async def test_metrics_count_adapters_and_their_requests() -> None:
    engine = Engine(max_loras=1)
    engine.go.set()
    stats = engine_stats()
    engine.loop.stats, engine.loop.steps = stats, 0  # type: ignore[attr-defined]
    async with attached(engine) as peer:
        peer.submit("a")
        peer.submit("b", 2)
        await until(lambda: engine.loop.added)
        value = engine.metrics.registry.get_sample_value
        labels = {"model_name": ""}
        assert value("ringline_adapters_known", labels) == 3
        assert value("ringline_adapters_loaded", labels) == 1
        assert value("ringline_adapter_requests_waiting", labels) == 1
        assert value("vllm:num_requests_waiting", labels) == 1
        assert value("ringline_adapter_load_seconds_count", labels) == 1
        info = {"max_lora": "1", "running_lora_adapters": "a", "waiting_lora_adapters": "b", **labels}
        assert value("vllm:lora_requests_info", info) == pytest.approx(time.time(), abs=60)


def engine_stats() -> Any:
    values = dict.fromkeys((field.name for field in fields(SchedulerStats)), 0)
    return SchedulerStats(**{**values, "accepted_by_position": ()})  # type: ignore[arg-type]
