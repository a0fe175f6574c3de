"""The RPCs of ``InferenceService`` over gRPC: streams, their tenants, what ends them with which status; look-ups."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import tokenizers
from ringline.errors import Overloaded, Unavailable, from_rpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.common.rpc.message_limits import parse
from services.processor.admission.request_resolution import resolve_request
from services.processor.admission.tokenization_queue import THREADS
from services.processor.client_stream import MAX_FRAME_BYTES
from services.processor.media.chat_pictures import PictureSource, take_sources
from services.processor.served_models import UNKNOWN_MODEL, ServedModels
from services.processor.service import detokenize
from services.ring.errors import Code, Refused, Status
from services.ring.events import FinishReason
from services.ring.logprobs import PackedLogprobs
from services.ring.outbox import Outboxes
from tests.services.processor.model_specs import MAX_MODEL_LEN, files, served_model
from tests.services.processor.service_harness import ServiceHarness, ask, read_ends, read_into, read_to_the_end, served
from tests.services.streams import cancel, send
from tests.waiting import until
from text_core.tokenizer import Tokenizer


async def test_a_client_that_reads_nothing_loses_its_requests(
    harness: ServiceHarness, channel: grpc.aio.Channel
) -> None:
    held = harness.occupy_threads()
    call = inference_pb2_grpc.InferenceServiceStub(channel).Session()
    await send(call, ask("waits"))
    (client,) = await until(lambda: harness.intake.streams)
    await until(lambda: client.num_live == 1)
    assert (await call.read()).HasField("limits")
    harness.service.limits = replace(harness.service.limits, stall_timeout=0.2)  # now that there is what it may lose
    for _ in range(2000):  # more than the window of a client that does not read
        client.refuse("another", 2, Status(Code.INVALID_ARGUMENT, "prompt: " + "x" * 100))
    await until(lambda: not harness.intake.streams)
    assert (client.num_live, client.num_refusals, client.outbox.pending) == (0, 0, False)
    assert not call.done(), "it has not taken its status"
    call.cancel()
    harness.go.set()
    await asyncio.gather(*held)


async def test_pictures_are_taken_out_of_a_large_message_in_a_thread(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies them, and nothing else goes on while the event loop does that."""
    threads: list[threading.Thread] = []

    def spy(chat: inference_pb2.Chat) -> list[PictureSource]:
        threads.append(threading.current_thread())
        return take_sources(chat)

    monkeypatch.setattr("services.processor.service.take_sources", spy)
    part = inference_pb2.ContentPart(media=inference_pb2.Media(data=bytes(100 << 10)))
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content_parts=[part])])
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    call = stub.Session()
    await send(call, inference_pb2.GenerateRequest(request_id="seen", chat=chat))
    (end,) = await read_ends(call, 1)
    assert "takes no pictures" in end.refused.status.message
    with pytest.raises(grpc.aio.AioRpcError, match="takes no pictures"):
        await read_to_the_end(stub.Generate(inference_pb2.GenerateRequest(chat=chat)))
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    call.cancel()


async def test_an_old_session_is_asked_to_end_and_ends_when_nothing_is_live_on_it(tmp_path: Path) -> None:
    harness = ServiceHarness()
    harness.service.limits = replace(harness.service.limits, max_age=0.1, drain_grace=600.0)
    async with served(harness, tmp_path) as stub:
        call = stub.Session()
        await send(call, ask("waits"))
        (client,) = await until(lambda: harness.intake.streams)
        while not (frame := await call.read()).HasField("draining"):
            assert not any(response.HasField("request_finished") for response in frame.responses)
        assert frame.draining.grace_ms == 600_000
        await send(call, ask("on its way"))
        await until(lambda: client.num_live == 2)
        client.end_when_idle()  # the grace is over
        await send(call, ask("too late"))
        late = await read_until_named(call, "too late")
        assert late.refused.status.code == grpc.StatusCode.UNAVAILABLE.value[0]
        for name in ("waits", "on its way"):
            assert client.num_live, "what is live is not cut"
            await cancel(call, name)
        await read_ends(call, 2)
        while await call.read() is not grpc.aio.EOF:
            pass
        assert await call.code() is grpc.StatusCode.OK


async def test_an_idle_session_ends_after_its_grace(tmp_path: Path) -> None:
    harness = ServiceHarness()
    harness.service.limits = replace(harness.service.limits, max_age=0.01, drain_grace=0.01)
    async with served(harness, tmp_path) as stub:
        call = stub.Session()
        await read_to_the_end(call)
        assert await call.code() is grpc.StatusCode.OK


async def read_until_named(call: grpc.aio.StreamStreamCall, name: str) -> inference_pb2.GenerateResponse:
    """The next response to a request."""
    async with asyncio.timeout(20):
        while True:
            for response in (await call.read()).responses:
                if response.request_id == name:
                    return response


@pytest.mark.parametrize("kind", ["session", "generate"])
async def test_a_client_with_too_much_unread_loses_its_stream_and_no_other_does(tmp_path: Path, kind: str) -> None:
    """However long it might take nothing: its requests end, and nothing is kept for it."""
    outboxes = Outboxes(max_bytes=3 << 20)
    harness = ServiceHarness(outboxes=outboxes)
    async with served(harness, tmp_path) as stub:
        call = stub.Session() if kind == "session" else stub.Generate(ask("waits"))
        if kind == "session":
            await send(call, ask("waits"))
        (client,) = await until(lambda: harness.intake.streams)
        request = await until(lambda: next((r for r in client.requests() if r.admitted), None))
        beside = stub.Session()
        await send(beside, ask("beside"))
        await until(lambda: len(harness.in_flight) == 2)
        position = 0
        while not client.given_up:
            scores = PackedLogprobs(20, [-1.0], [1], range(20), [-1.0] * 20)
            text = "x" * 10_000
            client.outbox.delta(request.request_id, 0, position, [7], text, scores)
            position += 1
            assert outboxes.total <= 2 * (3 << 20)
            await asyncio.sleep(0 if position % 10 else 0.001)  # so that some of it is under way
        await until(lambda: client not in harness.intake.streams)
        assert (client.num_live, client.outbox.pending, client.outbox.size) == (0, False, 0)
        assert len(harness.in_flight) == 1, "what its neighbour asked for goes on"
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await read_to_the_end(call)
        error = from_rpc(lost.value)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STALLED")
        assert "bytes wait, the limit for one reader" in str(error)
        await cancel(beside, "beside")
        (end,) = await read_ends(beside, 1)
        assert end.request_id == "beside"
        await beside.done_writing()


async def test_output_larger_than_a_frame_reaches_a_call_whole(harness: ServiceHarness, stub) -> None:
    call = stub.Generate(ask("waits"))
    (client,) = await until(lambda: harness.intake.streams)
    request = await until(lambda: next((r for r in client.requests() if r.admitted), None))
    entries = 3 * MAX_FRAME_BYTES // 200
    scores = PackedLogprobs(20, [-1.0] * entries, [1] * entries, range(20 * entries), [-1.0] * 20 * entries)
    client.outbox.prompt_logprobs(request.request_id, 0, scores)
    harness.in_flight.end(request, FinishReason.CANCELLED)
    shown: list[inference_pb2.GenerateResponse] = []
    async with asyncio.timeout(60):
        await read_into(shown, call)
    parts = [len(one.prompt_logprobs.logprobs.logprobs) for one in shown if one.HasField("prompt_logprobs")]
    assert sum(parts) == entries
    assert len(parts) > 1
    assert shown[-1].HasField("request_finished")


async def test_the_status_of_a_failed_call_says_when_to_retry(harness: ServiceHarness, stub) -> None:
    call = stub.Generate(ask("a"))
    (client,) = await until(lambda: harness.intake.streams)
    await until(lambda: client.num_live == 1)
    await until(lambda: client.requests()[0].admitted)
    refused = Status(Code.RESOURCE_EXHAUSTED, "the queue is full", retry_after_ms=1500)
    harness.in_flight.end(client.requests()[0], FinishReason.ERROR, refused)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await read_into([], call)
    error = from_rpc(failure.value)
    assert isinstance(error, Overloaded)
    assert error.retry_after == 1.5


async def test_an_ambiguous_tenant_is_refused(harness: ServiceHarness, stub) -> None:
    for metadata, problem in (
        ((("x-tenant", "a"), ("x-tenant", "b")), "x-tenant: 2 values: expected one at most"),
        ((("x-tenant", "a" * 129),), "x-tenant: 129 characters: expected a name of at most 128"),
    ):
        session = stub.Session(metadata=metadata)
        for call in (session, stub.Generate(ask("a"), metadata=metadata)):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await read_into([], call)
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert failure.value.details() == problem
        with pytest.raises(grpc.aio.AioRpcError, match=problem):
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="a"), metadata=metadata)
    assert not harness.intake.streams


async def test_a_status_whose_text_is_long_in_any_script_arrives(stub) -> None:
    chat = inference_pb2.Chat(template_name="\u8a9e" * 5000)
    chat.messages.add(role="user").content = "a"
    with pytest.raises(grpc.aio.AioRpcError, match=r"chat\.template_name") as failure:
        await stub.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", ["session", "generate"])
async def test_a_large_request_before_a_model_is_known_may_be_retried(harness: ServiceHarness, stub, kind: str) -> None:
    """As it does when a processor was killed: clients are back before its engines are."""
    harness.service._models = ServedModels(4, list, lambda: "no engine is attached (0 of 2)")
    request = ask("large", "a" * 2 * UNKNOWN_MODEL.max_bytes)
    call = stub.Session() if kind == "session" else stub.Generate(request)
    if kind == "session":
        await send(call, request)
        (end,) = await read_ends(call, 1)
        assert (end.in_reply_to, end.refused.status.code) == (1, grpc.StatusCode.UNAVAILABLE.value[0])
    else:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_to_the_end(call)
        assert isinstance(from_rpc(failure.value), Unavailable)
        assert str(from_rpc(failure.value)).startswith("no engine is attached (0 of 2); ")
    call.cancel()


async def test_large_frames_are_parsed_before_waiting_requests_are_tokenized(
    harness: ServiceHarness, stub: inference_pb2_grpc.InferenceServiceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, order = threading.Event(), []

    def parsed(*given: Any) -> Any:
        order.append(threading.current_thread().name != "MainThread" and "parsed")
        return parse(*given)

    def admitted(*given: Any) -> Any:
        order.append("tokenized")
        return resolve_request(*given)

    monkeypatch.setattr("services.processor.service.parse", parsed)
    monkeypatch.setattr("services.processor.admission.tokenization_job.resolve_request", admitted)
    waits = [one.wait, *[harness.go.wait] * (THREADS - 1)]
    held = [asyncio.create_task(harness.queue.run_in_thread(wait, "", 0)) for wait in waits]
    await asyncio.sleep(0)
    large = ask("large")
    large.stopping.stop.extend(["s"] * 1000)
    session = stub.Session(timeout=60)
    await send(session, ask("small"), large)
    await until(lambda: harness.queue._bytes.total > large.ByteSize())
    one.set()
    await until(lambda: len(order) == 4)
    assert order == [False, "parsed", "tokenized", "tokenized"]
    harness.go.set()
    await asyncio.gather(*held)
    session.cancel()


@pytest.mark.parametrize("kind", ["Session", "Generate"])
async def test_the_deadline_counts_from_when_the_frame_was_read(
    kind: str, stub: inference_pb2_grpc.InferenceServiceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it is parsed, for which a large one may wait."""
    since_read = 61.0

    def parsed(*given: Any) -> Any:
        nonlocal since_read
        since_read = 0.0
        return parse(*given)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() - since_read)
    monkeypatch.setattr("services.processor.service.time", clock)
    monkeypatch.setattr("services.processor.service.parse", parsed)
    request = ask("late")
    request.timeout_ms = 60_000
    if kind == "Session":
        session = stub.Session(timeout=20)
        await send(session, request)
        (end,) = await read_ends(session, 1)
        assert end.refused.status.code == Code.DEADLINE_EXCEEDED
        session.cancel()
    else:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_to_the_end(stub.Generate(request))
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_deadline_without_an_engine_says_so(harness: ServiceHarness, stub) -> None:
    harness.models.preferred = list
    harness.models._no_route_reason = lambda: "no engine is attached (0 of 2)"
    request = ask("waits")
    request.timeout_ms = 1
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await read_to_the_end(stub.Generate(request))
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    words = "the timeout passed while the request waited for a route: no engine is attached (0 of 2)"
    assert failure.value.details() == words


@pytest.mark.parametrize("missing", [0, 2])
async def test_look_ups_of_an_unknown_model_end_as_requests_do(harness: ServiceHarness, stub, missing: int) -> None:
    harness.models._num_missing_engines = lambda: missing
    asked = {"model": "other"}
    found = []
    for call in (
        stub.Tokenize(inference_pb2.TokenizeRequest(text="ab", **asked)),
        stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[1], **asked)),
        stub.Generate(inference_pb2.GenerateRequest(text="ab", **asked)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await (read_to_the_end(call) if isinstance(call, grpc.aio.UnaryStreamCall) else call)
        found.append((failure.value.code(), failure.value.details()))
    assert {code for code, _ in found} == {grpc.StatusCode.UNAVAILABLE if missing else grpc.StatusCode.NOT_FOUND}
    assert len(set(found)) == 1


async def test_the_tenant_comes_from_the_metadata(harness: ServiceHarness, stub) -> None:
    calls = [stub.Session(metadata=metadata) for metadata in ((("x-tenant", "a" * 128),), (("y-tenant", "b"),), ())]
    await until(lambda: len(harness.intake.streams) == 3)
    assert sorted(client.tenant for client in harness.intake.streams) == ["", "", "a" * 128]
    for call in calls:
        call.cancel()


WORD = "x" * 2000


def test_the_size_of_a_text_is_checked_before_it_is_decoded() -> None:
    """A few ids may be of long words."""
    library = tokenizers.Tokenizer.from_str(files()["tokenizer.json"].decode())
    library.add_tokens([WORD])
    own = Tokenizer.from_files({**files(), "tokenizer.json": library.to_str().encode()})
    known = served_model()
    known = replace(known, tokenizer=own, limits=replace(known.limits, vocab_size=own.vocab_size))
    word = own.token_id(WORD)
    assert word is not None
    few = known.limits.max_text_bytes // len(WORD)
    assert detokenize(inference_pb2.DetokenizeRequest(token_ids=[word] * few), known).text == WORD * few
    assert few < MAX_MODEL_LEN
    with pytest.raises(Refused, match=f"^token_ids: their text has {(few + 1) * len(WORD)} bytes: expected at most "):
        detokenize(inference_pb2.DetokenizeRequest(token_ids=[word] * (few + 1)), known)


def test_the_bytes_of_tokens_are_told_whatever_is_skipped() -> None:
    known = served_model()
    ids = known.tokenizer.encode("a€ b</s>", add_special_tokens=False)
    request = inference_pb2.DetokenizeRequest(token_ids=ids, pieces=True)
    pieces = detokenize(request, known).pieces
    assert len(pieces) == len(ids)
    assert b"".join(pieces) == known.tokenizer.decode(ids, skip_special_tokens=False).encode()
    request.pieces = False
    assert not detokenize(request, known).pieces
    assert "pieces" in known.capabilities


def test_the_size_of_pieces_is_bounded() -> None:
    """Special tokens add nothing to a text that leaves them out, but have pieces."""
    library = tokenizers.Tokenizer.from_str(files()["tokenizer.json"].decode())
    library.add_special_tokens([WORD])
    own = Tokenizer.from_files({**files(), "tokenizer.json": library.to_str().encode()})
    known = served_model()
    known = replace(known, tokenizer=own, limits=replace(known.limits, vocab_size=own.vocab_size))
    few = known.limits.max_text_bytes // len(WORD)
    ids = [own.token_id(WORD)] * few
    assert (
        detokenize(inference_pb2.DetokenizeRequest(token_ids=ids, pieces=True), known).pieces == [WORD.encode()] * few
    )
    with pytest.raises(
        Refused, match=r"^token_ids: their pieces have more than \d+ bytes together: expected fewer ids"
    ):
        detokenize(inference_pb2.DetokenizeRequest(token_ids=[*ids, ids[0]], pieces=True), known)
