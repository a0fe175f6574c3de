"""The front door's refusals: what they say, what they hold, how they are counted; over gRPC, in one process."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from ringline.errors import Overloaded, from_rpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.processor.admission import Admission, admit
from services.processor.backlog import Backlog, BacklogLimits
from services.processor.desk import THREADS, Desk
from services.processor.peers import Peers
from services.processor.ring import Ring
from services.processor.service import InferenceService, SessionBounds
from services.processor.validation import MAX_REQUEST_ID_BYTES
from services.processor.vocabulary import VocabularySource
from services.ring.events import Cause, Code, Status
from services.ring.identity import PeerId
from services.runtime.metrics import ProcessorMetrics
from tests.services.processor.backlogs import roomy
from tests.services.processor.vocabularies import vocabulary

T = TypeVar("T")
MAX_LIVE = 3
ROOM = 10_000
"""Bytes of one tenant that may wait at the desk."""


class FrontDoor:
    """A processor without engines: what it takes, waits."""

    def __init__(self, stall_timeout: float = 30.0, backlog: Backlog | None = None) -> None:
        source = VocabularySource()
        source.current = vocabulary()
        me = PeerId("processor", 1)
        peers = Peers(source, random.Random(0))
        self.metrics = ProcessorMetrics()
        peers.events = ring = self.ring = Ring(peers, self.metrics, backlog or roomy(), patience=60.0)
        self.desk = Desk(source, ring, me, max_waiting_bytes=2 * ROOM)
        bounds = SessionBounds(
            max_live_requests=MAX_LIVE, max_message_bytes=1 << 24, stall_timeout=stall_timeout, drain_grace=1.0
        )
        self.service = InferenceService(me, source, ring, self.desk, self.metrics, bounds, "x-tenant")
        self.go = threading.Event()

    def hold_up(self) -> list[asyncio.Task[object]]:
        """Occupy every thread until ``go``, and the places behind them."""
        return [asyncio.create_task(self.desk.run(self.go.wait, "", 0)) for _ in range(THREADS)]

    def counted(self) -> dict[tuple[str, str], float]:
        """Terminals by reason, refusals by code."""
        names = ("vllm:request_success_total", "ringline_requests_refused_total")
        return {
            (sample.name, sample.labels.get("finished_reason") or sample.labels["code"]): sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name in names
        }


@pytest.fixture
async def door() -> AsyncIterator[FrontDoor]:
    door = FrontDoor()
    yield door
    door.go.set()
    door.desk.close()


@pytest.fixture
async def front(door: FrontDoor, tmp_path: Path) -> AsyncIterator[inference_pb2_grpc.InferenceServiceStub]:
    async with served(door, tmp_path) as stub:
        yield stub


@asynccontextmanager
async def served(door: FrontDoor, tmp_path: Path) -> AsyncIterator[inference_pb2_grpc.InferenceServiceStub]:
    """A stub of the door's."""
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(door.service, server)
    server.add_insecure_port(f"unix:{tmp_path}/door.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/door.sock") as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)
    await server.stop(0)


def ask(name: str, text: str = "ab") -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(request_id=name, text=text)


async def write(call: grpc.aio.StreamStreamCall, *requests: inference_pb2.GenerateRequest) -> None:
    for request in requests:
        await call.write(inference_pb2.SessionRequest(generate=request))


async def cancel(call: grpc.aio.StreamStreamCall, name: str) -> None:
    await call.write(inference_pb2.SessionRequest(cancel=inference_pb2.CancelRequest(request_id=name)))


async def read_terminals(call: grpc.aio.StreamStreamCall, count: int) -> list[inference_pb2.GenerateResponse]:
    """The next so many terminals of a session."""
    found: list[inference_pb2.GenerateResponse] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            frame = await call.read()
            found += [response for response in frame.responses if response.HasField("terminal")]
    return found


async def test_a_name_that_is_too_long_does_not_come_back(front) -> None:
    call = front.Session()
    await write(call, ask("ö" * (MAX_REQUEST_ID_BYTES // 2) + "x"), ask("x" * 1_000_000))
    refused = await read_terminals(call, 2)
    assert [(response.request_id, response.in_reply_to) for response in refused] == [("", 1), ("", 2)]
    for response in refused:
        assert response.terminal.error.message.startswith("request_id: ")
        assert response.ByteSize() < 300
    call.cancel()
    shown: list[inference_pb2.GenerateResponse] = []
    with pytest.raises(grpc.aio.AioRpcError, match="request_id: 129 bytes: expected at most 128"):
        await read_into(shown, front.Generate(ask("x" * (MAX_REQUEST_ID_BYTES + 1))))
    assert [response.request_id for response in shown] == [""]


async def test_a_name_may_be_as_long_as_the_contract_says(front) -> None:
    call = front.Session()
    name = "x" * MAX_REQUEST_ID_BYTES
    await write(call, ask(name))
    await cancel(call, name)
    (end,) = await read_terminals(call, 1)
    assert (end.request_id, end.terminal.HasField("error")) == (name, False)
    call.cancel()


async def test_a_request_that_is_cancelled_while_it_waits_makes_room(door: FrontDoor, front) -> None:
    held = door.hold_up()
    call = front.Session()
    for _ in range(THREADS):  # each thread's next batch
        await write(call, ask("taken", "a" * ROOM))
        await cancel(call, "taken")
        await read_terminals(call, 1)
    await write(call, ask("waits", "a" * ROOM), ask("is refused", "a" * ROOM))
    (refused,) = await read_terminals(call, 1)
    assert refused.request_id == "is refused"
    assert refused.terminal.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert refused.terminal.error.details, "when to come again"
    await cancel(call, "waits")
    await write(call, ask("in its place", "a" * ROOM))
    (cancelled,) = await read_terminals(call, 1)
    assert cancelled.request_id == "waits"
    assert not cancelled.terminal.HasField("error")
    door.go.set()
    (late,) = await read_terminals(call, 1)
    assert late.request_id == "in its place"
    assert late.terminal.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0], "longer than the context"
    await asyncio.gather(*held)
    call.cancel()


async def test_every_refusal_is_counted_once_with_its_code(door: FrontDoor, front) -> None:
    call = front.Session()
    await write(call, *(ask(f"live {i}") for i in range(MAX_LIVE)), ask("live 0"), ask("one too many"), ask(""))
    await call.write(inference_pb2.SessionRequest())
    assert len(await read_terminals(call, 4)) == 4
    too_hot = ask("too hot")
    too_hot.sampling.temperature = -1.0
    for request in (too_hot, ask("x" * 1000)):
        with pytest.raises(grpc.aio.AioRpcError):
            await read_into([], front.Generate(request))
    door.service.drain()
    with pytest.raises(grpc.aio.AioRpcError):
        await read_into([], front.Generate(ask("late")))
    for index in range(MAX_LIVE):
        await cancel(call, f"live {index}")
    await read_terminals(call, MAX_LIVE)
    assert door.counted() == {
        ("vllm:request_success_total", "abort"): MAX_LIVE,
        ("vllm:request_success_total", "error"): 7,
        ("ringline_requests_refused_total", "INVALID_ARGUMENT"): 5,
        ("ringline_requests_refused_total", "RESOURCE_EXHAUSTED"): 1,
        ("ringline_requests_refused_total", "UNAVAILABLE"): 1,
    }
    call.cancel()


async def read_into(shown: list[inference_pb2.GenerateResponse], call: grpc.aio.UnaryStreamCall) -> None:
    """All that a Generate call answers; raises its error."""
    async for response in call:
        shown.append(response)  # noqa: PERF401  # also when it fails


async def test_a_client_that_takes_nothing_loses_what_it_has_under_way(tmp_path: Path) -> None:
    door = FrontDoor(stall_timeout=0.2)
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(door.service, server)
    server.add_insecure_port(f"unix:{tmp_path}/door.sock")
    await server.start()
    narrow = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
    held = door.hold_up()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/door.sock", options=narrow) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Session()
        await write(call, ask("waits"))
        (client,) = await until(lambda: door.service._sessions)
        await until(lambda: client.num_live == 1)
        for _ in range(2000):  # more than the window of a client that does not read
            client.refuse("another", 2, Status(Code.INVALID_ARGUMENT, "prompt: " + "x" * 100))
        await until(lambda: not door.service._sessions)
        assert (client.num_live, client.num_refusals, client.outbox.pending) == (0, 0, False)
        assert not call.done(), "it has not taken its status"
        call.cancel()
    await server.stop(0)
    door.go.set()
    await asyncio.gather(*held)
    door.desk.close()


async def test_the_status_of_a_failed_call_says_when_to_come_again(door: FrontDoor, front) -> None:
    call = front.Generate(ask("a"))
    (client,) = await until(lambda: door.service._sessions)
    await until(lambda: client.num_live == 1)
    await until(lambda: client.requests()[0].live is not None)
    refused = Status(Code.RESOURCE_EXHAUSTED, "the queue is full", retry_after_ms=1500)
    door.ring.end(client.requests()[0], Cause.ERROR, refused)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await read_into([], call)
    error = from_rpc(failure.value)
    assert isinstance(error, Overloaded)
    assert error.retry_after == 1.5


async def test_a_call_that_does_not_say_clearly_whose_it_is_is_refused(door: FrontDoor, front) -> None:
    for metadata, problem in (
        ((("x-tenant", "a"), ("x-tenant", "b")), "x-tenant: 2 values: expected one at most"),
        ((("x-tenant", "a" * 129),), "x-tenant: 129 characters: expected a name of at most 128"),
    ):
        session = front.Session(metadata=metadata)
        for call in (session, front.Generate(ask("a"), metadata=metadata)):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await read_into([], call)
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert failure.value.details() == problem
        with pytest.raises(grpc.aio.AioRpcError, match=problem):
            await front.Tokenize(inference_pb2.TokenizeRequest(text="a"), metadata=metadata)
    assert not door.service._sessions


async def test_the_tenant_is_what_the_metadata_says(door: FrontDoor, front) -> None:
    calls = [front.Session(metadata=metadata) for metadata in ((("x-tenant", "a" * 128),), (("y-tenant", "b"),), ())]
    await until(lambda: len(door.service._sessions) == 3)
    assert sorted(client.tenant for client in door.service._sessions) == ["", "", "a" * 128]
    for call in calls:
        call.cancel()


async def test_a_flood_is_refused_before_it_is_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[str] = []

    def counted(request: inference_pb2.GenerateRequest, *others: object) -> Admission:
        tokenized.append(request.request_id)
        return admit(request, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("services.processor.desk.admit", counted)
    door = FrontDoor(backlog=Backlog(BacklogLimits(max_requests=4, max_seconds=60.0)))
    async with served(door, tmp_path) as front:
        call = front.Session()
        await write(call, *(ask(f"r{i}") for i in range(2)))
        await until(lambda: len(tokenized) == 2)
        await write(call, ask("one too many"))
        (refused,) = await read_terminals(call, 1)
        assert refused.in_reply_to == 3
        assert refused.terminal.error.code == Code.RESOURCE_EXHAUSTED
        assert refused.terminal.error.details, "when to come again"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_into([], front.Generate(ask("another")))
        error = from_rpc(failure.value)
        assert isinstance(error, Overloaded)
        assert error.retry_after is not None
        assert 1.0 <= error.retry_after <= 1.25
        await cancel(call, "r0")
        await read_terminals(call, 1)
        await write(call, ask("in its place"))
        await until(lambda: len(tokenized) == 3)
        assert tokenized == ["r0", "r1", "in its place"]
        call.cancel()
    door.desk.close()


async def until(condition: Callable[[], T]) -> T:
    """What the condition says, once it is true."""
    async with asyncio.timeout(20):
        while not (found := condition()):  # noqa: ASYNC110 - of state that tells nobody
            await asyncio.sleep(0.01)
    return found
