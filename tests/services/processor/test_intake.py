"""Requests that are received, refused and cancelled by ``Intake``, as clients see it over gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from ringline.errors import Overloaded, from_rpc
from ringline.inference.v1 import inference_pb2

from services.processor.admission.backlog import BacklogLimits
from services.processor.admission.request_resolution import resolve_request
from services.processor.admission.validation import MAX_REQUEST_ID_BYTES
from services.processor.request import ResolvedRequest
from services.ring.errors import Code
from tests.services.processor.service_harness import MAX_LIVE, ROOM, ServiceHarness, ask, read_ends, read_into, served
from tests.services.streams import cancel, send
from tests.waiting import until


async def test_a_request_id_that_is_too_long_is_not_echoed(stub) -> None:
    call = stub.Session()
    await send(call, ask("ö" * (MAX_REQUEST_ID_BYTES // 2) + "x"), ask("x" * 100_000))
    refused = await read_ends(call, 2)
    assert [(response.request_id, response.in_reply_to) for response in refused] == [("", 1), ("", 2)]
    for response in refused:
        assert response.refused.status.message.startswith("request_id: ")
        assert response.ByteSize() < 300
    call.cancel()
    shown: list[inference_pb2.GenerateResponse] = []
    with pytest.raises(grpc.aio.AioRpcError, match="request_id: 129 bytes: expected at most 128"):
        await read_into(shown, stub.Generate(ask("x" * (MAX_REQUEST_ID_BYTES + 1))))
    assert [response.request_id for response in shown] == [""]


async def test_a_request_id_may_be_as_long_as_the_contract_says(stub) -> None:
    call = stub.Session()
    name = "x" * MAX_REQUEST_ID_BYTES
    await send(call, ask(name))
    await cancel(call, name)
    (end,) = await read_ends(call, 1)
    assert end.request_id == name
    assert end.refused.status.code in (0, Code.CANCELLED), "admitted or not"
    call.cancel()


async def test_a_request_that_is_cancelled_while_it_waits_makes_room(harness: ServiceHarness, stub) -> None:
    held = harness.occupy_threads()
    call = stub.Session()
    await send(call, ask("waits", "a" * ROOM), ask("is refused", "a" * ROOM))
    (refused,) = await read_ends(call, 1)
    assert refused.request_id == "is refused"
    assert refused.refused.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert refused.refused.status.details, "when to come again"
    await cancel(call, "waits")
    await send(call, ask("in its place", "a" * ROOM))
    (cancelled,) = await read_ends(call, 1)
    assert cancelled.request_id == "waits"
    assert cancelled.refused.status.code == Code.CANCELLED
    harness.go.set()
    (late,) = await read_ends(call, 1)
    assert late.request_id == "in its place"
    assert late.refused.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0], "longer than the context"
    await asyncio.gather(*held)
    call.cancel()


async def test_every_refusal_is_counted_once_with_its_code(harness: ServiceHarness, stub) -> None:
    call = stub.Session()
    await send(call, *(ask(f"live {i}") for i in range(MAX_LIVE)), ask("live 0"), ask("one too many"), ask(""))
    await call.write(inference_pb2.SessionRequest())
    assert len(await read_ends(call, 4)) == 4
    too_hot = ask("too hot")
    too_hot.sampling.temperature = -1.0
    for request in (too_hot, ask("x" * 1000)):
        with pytest.raises(grpc.aio.AioRpcError):
            await read_into([], stub.Generate(request))
    harness.intake.drain()
    with pytest.raises(grpc.aio.AioRpcError):
        await read_into([], stub.Generate(ask("late")))
    for index in range(MAX_LIVE):
        await cancel(call, f"live {index}")
    await read_ends(call, MAX_LIVE)
    assert harness.counted() == {
        ("vllm:request_success_total", "abort"): MAX_LIVE,
        ("vllm:request_success_total", "error"): 7,
        ("ringline_requests_refused_total", "INVALID_ARGUMENT"): 5,
        ("ringline_requests_refused_total", "RESOURCE_EXHAUSTED"): 1,
        ("ringline_requests_refused_total", "UNAVAILABLE"): 1,
    }
    call.cancel()


async def test_a_flood_is_refused_before_it_is_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[str] = []

    def counted(request: inference_pb2.GenerateRequest, *others: object) -> ResolvedRequest:
        tokenized.append(request.request_id)
        return resolve_request(request, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("services.processor.admission.tokenization_job.resolve_request", counted)
    harness = ServiceHarness(BacklogLimits(max_requests=4, max_seconds=60.0))
    async with served(harness, tmp_path) as stub:
        call = stub.Session()
        await send(call, *(ask(f"r{i}") for i in range(2)))
        await until(lambda: len(tokenized) == 2)
        await send(call, ask("one too many"))
        (refused,) = await read_ends(call, 1)
        assert refused.in_reply_to == 3
        assert refused.refused.status.code == Code.RESOURCE_EXHAUSTED
        assert refused.refused.status.details, "when to come again"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_into([], stub.Generate(ask("another")))
        error = from_rpc(failure.value)
        assert isinstance(error, Overloaded)
        assert error.retry_after is not None
        assert 1.0 <= error.retry_after <= 1.25
        await cancel(call, "r0")
        await read_ends(call, 1)
        await send(call, ask("in its place"))
        await until(lambda: len(tokenized) == 3)
        assert tokenized == ["r0", "r1", "in its place"]
        call.cancel()
