"""The chunks of a chat's stream: whatever a delta brings, clients put the same answer together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from ringline import Content, Delta, Event, FinishReason, Part, Reasoning, ToolCallPiece, Usage
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2, part_pb2

from services.gateway.http import event_stream
from services.gateway.openai.chat import ChatRequest, ChatWriter
from services.gateway.openai.sampling_fields import StreamOptions
from tests.clients.scripted_server import admitted, call, delta, ended, play, started, status
from tests.services.gateway.answers import answers, blocks, deltas, finished, is_call
from tests.services.gateway.http_harness import CHAT, request, running

HEAD = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "model": "m"}
LOST = ended(output_pb2.FINISH_REASON_ERROR, error=status(grpc.StatusCode.INTERNAL, "broken"), completion=1)


def at_once(writer: ChatWriter, event: Event) -> bytes:
    """What is written without waiting: there are no texts of tokens to load."""
    try:
        writer.add(0, event).send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def written(events: Sequence[Event], request: ChatRequest) -> list[dict[str, Any]]:
    admitted: Any = SimpleNamespace(model="m", prompt_tokens=3, prompt_token_ids=None)
    call: Any = SimpleNamespace(request_id="x")
    writer = ChatWriter(call, request, admitted, None, admitted.model)

    data = b"".join(map(partial(at_once, writer), events)) + writer.end(Usage(3, 2, len(events)))
    *told, done = data.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in told]


def runs(chunks: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What a client understands: each run of one kind with its text, each call on its own."""
    parts: list[Part] = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        one = choice["delta"]
        if one.get("content"):
            parts.append(Content(one["content"]))
        if "reasoning_content" in one:
            parts.append(Reasoning(one["reasoning_content"]))
        for piece in one.get("tool_calls", ()):
            assert ("id" in piece) == ("name" in piece["function"])
            parts.append(ToolCallPiece(piece["index"], "", "", piece["function"]["arguments"]))
    return blocks(parts)


@given(answers())
def test_parts_one_by_one_and_all_at_once_are_the_same_answer(parts: list[Part]) -> None:
    at_once = [Delta(0, 0, "", (1, 2), None, tuple(parts))]
    for events in (deltas(*parts), at_once):
        chunks = written([*events, finished()], ChatRequest())
        for got, expected in zip(runs(chunks), blocks(parts), strict=True):
            assert got == expected or got == (expected[0], "\n" + expected[1])
        assert ["role" in chunk["choices"][0]["delta"] for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
        called = any(map(is_call, blocks(parts)))
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["tool_calls" if called else "stop"]
        assert all(chunk.items() >= HEAD.items() and chunk.keys() == {*HEAD, "created", "choices"} for chunk in chunks)


def test_a_call_that_was_cut_off_says_so() -> None:
    *_, last = written([*deltas(ToolCallPiece(0, "c", "f", "{")), finished(FinishReason.LENGTH)], ChatRequest())
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stop", ["cat", 2])
async def test_a_stop_within_a_call_ends_the_answer_and_not_the_call(stop: str | int) -> None:
    pieces = [ToolCallPiece(0, "c", "f", '{"a": 1}'), ToolCallPiece(1, "d", "g", '{"pet": "')]
    for called, expected in ((pieces, "tool_calls"), (pieces[1:], "stop")):
        *_, last = written([*deltas(*called), finished(stop=stop)], ChatRequest())
        assert last["choices"][0]["finish_reason"] == expected
    async with running() as gateway:
        parts = [call('{"a": 1}', "f"), call('{"pet": "', "g", index=1)]
        for kept in (1, 0):
            sent = parts[1 - kept :] if kept else [call('{"pet": "', "g")]
            stopped = ended(output_pb2.FINISH_REASON_STOP, completion=1)
            gateway.processor.plays(play(admitted(), started(), delta(0, [7], "a", parts=sent), stopped))
            reply = await gateway.ask("POST", "/v1/chat/completions", CHAT)
            (choice,) = json.loads(reply.body)["choices"]
            names = [one["function"]["name"] for one in choice["message"].get("tool_calls", ())]
            assert (names, choice["finish_reason"]) == ((["f"], "tool_calls") if kept else ([], "stop"))


async def test_texts_around_calls_and_reasoning_do_not_run_together() -> None:
    pieces = [Content("A"), ToolCallPiece(0, "c", "f", "{}"), Content("then"), Reasoning("Hm"), Content(" done")]
    for events in (deltas(*pieces), [Delta(0, 0, "", (1,), None, tuple(pieces))]):
        told = runs(written([*events, finished()], ChatRequest()))
        assert "".join(text for kind, text in told if kind == "content") == "A\nthen done"
    sent = [part_pb2.Part(content="A"), call("{}", "f"), part_pb2.Part(content="then"), part_pb2.Part(reasoning="Hm")]
    sent.append(part_pb2.Part(content=" done"))
    async with running() as gateway:
        stopped = ended(output_pb2.FINISH_REASON_STOP, completion=1)
        divided = admitted(output=pb.OutputParams(parse=part_pb2.ParseParams()))
        gateway.processor.plays(play(divided, started(), delta(0, [7], "a", parts=sent), stopped))
        reply = await gateway.ask("POST", "/v1/chat/completions", CHAT)
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == "A\nthen done"


def test_reasoning_can_be_left_out() -> None:
    events = [*deltas(Reasoning("why"), Content("so")), finished()]
    assert runs(written(events, ChatRequest(include_reasoning=False))) == [("content", "so")]


def test_a_stop_is_told_if_the_request_named_it() -> None:
    for asked, stop, told in (
        (ChatRequest(), 2, None),
        (ChatRequest(stop_token_ids=[2]), 2, 2),
        (ChatRequest(), "x", "x"),
    ):
        *_, last = written([finished(stop=stop)], asked)
        assert last["choices"][0]["stop_reason"] == told


def test_usage() -> None:
    events = [*deltas(Content("a"), Content("b")), finished()]
    whole = {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    *chunks, last = written(events, ChatRequest(stream_options=StreamOptions(include_usage=True)))
    assert [chunk["usage"] for chunk in chunks] == [None, None, None]
    assert last == {**HEAD, "created": last["created"], "choices": [], "usage": whole}
    *chunks, last = written(
        events, ChatRequest(stream_options=StreamOptions(include_usage=True, continuous_usage_stats=True))
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]
    assert last["usage"] == whole
    assert all("usage" not in chunk for chunk in written(events, ChatRequest()))


async def test_a_late_failure_is_an_event_and_no_normal_end() -> None:
    async with running() as gateway:
        gateway.processor.plays(
            play(admitted(), started(), delta(0, [7], "a", parts=[part_pb2.Part(content="a")]), LOST)
        )
        reply = await gateway.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        first, last = reply.body.decode().removesuffix("\n\n").split("\n\n")
        assert reply.status == 200
        assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == "a"
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "broken"

        gateway.processor.plays(play(admitted(), started(), delta(0, [7], "a"), LOST))
        reply = await gateway.ask("POST", "/v1/chat/completions", CHAT)
        assert (reply.status, reply.error["message"]) == (500, "broken")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_goes_away_cancels_its_requests(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PING_INTERVAL", 0.2)  # a ping meets that it is gone
    cancelled = asyncio.Event()

    async def endless(_request: object) -> Any:
        yield admitted()
        yield started()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    body = {**CHAT, "prompt": "Hi", "stream": True}
    async with running() as gateway:
        gateway.processor.plays(endless)
        async with gateway.connection() as connection:
            connection.send(request("POST", path, body))
            assert (await connection.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            assert not cancelled.is_set()
        async with asyncio.timeout(20):
            await cancelled.wait()


async def test_prompts_that_wait_for_an_engine_hold_up_no_others() -> None:
    ahead = asyncio.Event()
    async with running() as gateway:
        first = [started(), delta(0, [7], "first"), *ended(completion=1)]
        gateway.processor.plays(play(admitted(), *first), play(admitted(), ahead, *first))
        async with gateway.connection() as connection:
            body = {"prompt": ["a", "b"], "stream": True}
            connection.send(request("POST", "/v1/completions", body))
            async with asyncio.timeout(20):
                await connection.reader.readuntil(b'"text":"first"')
                ahead.set()
                await connection.reader.readuntil(b'"index":1,"text":"first"')
                await connection.reader.readuntil(b"data: [DONE]")
