"""Large bodies: their values are counted before they are decoded, and what is made of them is made in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from google.protobuf.message import Message
from ringline.inference.v1 import inference_pb2 as pb
from ringline.request import build_request, build_tokenize
from ringline.types.v1 import output_pb2
from ringline.types.v1.output_pb2 import Logprobs

from services.gateway.answer import MAX_LOGPROBS
from services.gateway.http import call, large
from services.gateway.http.api_error import ApiError
from services.gateway.http.large import MAX_ENTRIES, MAX_VALUES, LargeBodies, check_values, has_more_entries, is_small
from services.gateway.openai.answer_form import MAX_TAGS, StructuredOutputs, structured_options
from services.gateway.openai.logprobs import CompletionLogprobs, chat_logprobs
from services.gateway.rpc.envelope import decode, encode
from services.gateway.token_texts import TokenTexts
from tests.clients.scripted_server import admitted, delta, ended, started
from tests.services.gateway.http_harness import CHAT, Running, running
from text_core.grammar import constraints

HI = {"role": "user", "content": "Hi"}


def values_in(value: Any) -> tuple[int, int]:
    """What is counted: names, and values that are no whole numbers; and entries of lists and objects."""
    names = entries = 0
    values, todo = 0, [value]
    while todo:
        one = todo.pop()
        values += isinstance(one, bool) or not isinstance(one, int | float)
        values += ("." in repr(one)) + 32 * ("e" in repr(one)) if isinstance(one, float) else 0
        if isinstance(one, dict | list):
            entries += len(one)
            names += len(one) if isinstance(one, dict) else 0
            todo += one.values() if isinstance(one, dict) else one
    return names + values, entries


TRICKY = ['a"b', "\\", '\\"', '\\\\"', "[,{", "tfn", "", 'x\\\\\\"', "é\u2028"]


@pytest.mark.parametrize("indent", [None, 1])
def test_values_are_counted_as_they_are_decoded(monkeypatch: pytest.MonkeyPatch, indent: int | None) -> None:
    body = {text: [text, 1.5e3, 9e300, -1.5e-7, True, False, None, {"n": [text, -1]}] for text in TRICKY}
    data = json.dumps(body, indent=indent).encode()
    assert msgspec.json.decode(data) == body
    values, entries = values_in(body)
    containers = 2 * len(TRICKY) + 1
    for limits, refused in (((values, entries + containers), False), ((values - 1, 10**6), True)):
        monkeypatch.setattr(large, "MAX_VALUES", limits[0])
        monkeypatch.setattr(large, "MAX_ENTRIES", limits[1])
        with pytest.raises(ApiError) if refused else nullcontext():
            check_values(data)
    assert has_more_entries(data, entries - 1)
    assert not has_more_entries(data, entries + containers)


def test_texts_and_ids_are_not_limited_by_what_is_in_them() -> None:
    check_values(b'{"prompt":"%b"}' % (b'a,[{\\"' * 300_000))
    check_values(b'{"prompt":[%b7]}' % (b"7," * (MAX_ENTRIES - 8)))
    with pytest.raises(ApiError, match=f"at most {MAX_VALUES} texts"):
        check_values(b'{"prompt":[%b""]}' % (b'"",' * MAX_VALUES))
    with pytest.raises(ApiError, match=f"{MAX_ENTRIES} entries in all"):
        check_values(b'{"prompt":[%b7]}' % (b"7," * MAX_ENTRIES))
    with pytest.raises(ApiError, match="fractions"):
        check_values(b'{"prompt":[%b7]}' % (b"0.5," * MAX_VALUES))


@pytest.mark.parametrize("number", [b"9e300", b"9E+300", b"4.9e-324"])
def test_numbers_that_take_the_decoder_long_are_few(number: bytes) -> None:
    """One of them takes msgspec 20 µs, so those of 4 MiB would end the gateway."""
    check_values(b'{"metadata":[%b7]}' % (b"true,false,7,0.5," * 2000 + (number + b",") * 3500))
    with pytest.raises(ApiError, match="numbers with an exponent"):
        check_values(b'{"metadata":[%b7]}' % ((number + b",") * 5000))
    assert is_small(b'{"metadata":[%b7]}' % ((number + b",") * 60))
    assert not is_small(b'{"metadata":[%b7]}' % ((number + b",") * 70))


def test_bodies_that_are_small() -> None:
    assert is_small(json.dumps(CHAT).encode())
    assert not is_small(b" " * (65 << 10))
    assert not is_small(json.dumps({"messages": [HI] * 600}).encode())


MANY = [
    ("/v1/chat/completions", {"messages": [HI] * 1000}),
    ("/v1/completions", {"prompt": [7] * 2000}),
    ("/v1/responses", {"input": [HI] * 1000}),
    ("/v1/responses/input_tokens", {"input": [HI] * 1000}),
    ("/v1/messages", {"messages": [HI] * 1000, "max_tokens": 4}),
    ("/v1/messages/count_tokens", {"messages": [HI] * 1000}),
    ("/tokenize", {"messages": [HI] * 1000}),
    ("/detokenize", {"tokens": [7] * 2000}),
    ("/v1/embeddings", {"input": ["a"] * 2000}),
    ("/rerank", {"query": "a", "documents": ["a"] * 2000}),
    ("/ringline.inference.v1.InferenceService/Tokenize", {"chat": {"messages": [HI] * 1000}}),
]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each step of a request's reading, whether it was done on the event loop."""
    on_loop: list[bool] = []

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **options: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return work(*args, **options)

        return noting

    monkeypatch.setattr(call, "check_values", noted(check_values))
    monkeypatch.setattr("services.gateway.rpc.inference.decode", noted(decode))
    monkeypatch.setattr("ringline.session.build_request", noted(build_request))
    monkeypatch.setattr("services.gateway.answer.build_tokenize", noted(build_tokenize))
    return on_loop


@pytest.mark.parametrize(("path", "body"), MANY)
async def test_a_large_body_is_read_in_a_thread(
    gateway: Running, threads: list[bool], path: str, body: dict[str, Any]
) -> None:
    await gateway.ask("POST", path, body)
    assert threads
    assert not any(threads)


async def test_a_small_body_is_read_at_once(gateway: Running, threads: list[bool]) -> None:
    assert (await gateway.ask("POST", "/v1/chat/completions", CHAT)).status == 200
    assert threads == [True, True]


@pytest.mark.parametrize("path", [path for path, _ in MANY])
async def test_too_many_values_are_refused_before_they_are_decoded(gateway: Running, path: str) -> None:
    many = b'{"messages":[' + b'{"a":""},' * (MAX_VALUES // 3 + 1) + b"1]}"
    reply = await gateway.ask("POST", path, many)
    assert reply.status in (400, 413)
    assert b"too many" in reply.body
    assert not gateway.processor.service.requests


async def test_clients_take_turns_and_one_body_is_read_at_a_time() -> None:
    bodies, done, busy = LargeBodies(), [], [0]

    def work(name: str) -> None:
        busy[0] += 1
        assert busy[0] == 1
        done.append(name)
        busy[0] -= 1

    hostile = [asyncio.create_task(bodies.run("a", lambda: work("a"))) for _ in range(50)]
    await asyncio.sleep(0)
    await bodies.run("b", lambda: work("b"))
    assert done.index("b") <= 2, "it waited for one body of the other client, not for fifty"
    hostile[-1].cancel()
    await asyncio.gather(*hostile, return_exceptions=True)
    assert not bodies._turns


async def test_completions_are_not_multiplied_by_their_options() -> None:
    async with running() as gateway:
        body = {"prompt": ["a"] * 1024, "allowed_token_ids": [100000] * 4000}
        reply = await gateway.ask("POST", "/v1/completions", body)
        assert reply.status == 400
        assert "1024 prompts, each with options of" in reply.error["message"]
        assert not gateway.processor.service.requests


@pytest.mark.parametrize("name", ["structures", "triggers"])
def test_triggers_are_compared_with_few_structures(name: str) -> None:
    assert constraints.MAX_TAGS == MAX_TAGS
    tags: dict[str, list[Any]] = {"structures": [{"begin": "b", "schema": {}}] * 2, "triggers": ["a"] * 2}
    tags[name] = tags[name][:1] * 257
    with pytest.raises(ApiError, match=rf"structural_tag\.{name}: 257 entries: expected at most 256"):
        structured_options(StructuredOutputs(structural_tag=tags))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 128, "max_tokens": 1900, "logprobs": True, "top_logprobs": 20}, "top_"),
        ("/v1/completions", {"prompt": ["a"] * 1024, "max_tokens": 100, "logprobs": 5}, ""),
        ("/v1/responses", {"input": "a", "max_output_tokens": 25_000, "top_logprobs": 20}, "top_"),
    ],
)
async def test_more_log_probabilities_than_a_whole_answer_may_have_are_not_computed(
    gateway: Running, path: str, body: dict[str, Any], param: str
) -> None:
    reply = await gateway.ask("POST", path, body)
    assert (reply.status, reply.error["param"]) == (400, f"{param}logprobs")
    assert f"expected at most {MAX_LOGPROBS}, alternatives counted" in reply.error["message"]
    assert not gateway.processor.service.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "limit", "param"),
    [
        ({"echo": True, "logprobs": 2}, "MAX_LOGPROBS", "prompt_logprobs"),
        ({"prompt_logprobs": 2}, "MAX_LOGPROBS", "prompt_logprobs"),
        ({"echo": True}, "MAX_PROMPT_COPIES", "prompt"),
        ({"return_token_ids": True}, "MAX_PROMPT_COPIES", "prompt"),
    ],
)
async def test_what_choices_repeat_of_a_prompt_is_counted_for_each(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], limit: str, param: str, stream: bool
) -> None:
    if stream and "prompt_logprobs" in options:
        return
    knows_tokens(monkeypatch)
    gateway.processor.plays(many)
    tokens = admitted().admitted.prompt_tokens
    values = 7 * tokens * (3 if limit == "MAX_LOGPROBS" else 1)
    body = {"prompt": "a", "max_tokens": 1, "n": 7, "stream": stream, **options}
    monkeypatch.setattr(f"services.gateway.answer.{limit}", values - 1)
    reply = await gateway.ask("POST", "/v1/completions", body)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert f"{values} " in reply.error["message"]
    assert gateway.process.load.num_requests == 0


def test_values_in_a_text_of_tags_are_counted() -> None:
    with pytest.raises(ApiError, match="too many values"):
        structured_options(StructuredOutputs(structural_tag="[" + "[]," * 200_000 + "[]]"))


def scored(tokens: int) -> Logprobs:
    """Of the first ids, each with two alternatives."""
    top = [one for token in range(tokens) for one in (token, token + 1)]
    values = [-0.5, -1e-7] * tokens
    return Logprobs(logprobs=[-0.5] * tokens, ranks=[1] * tokens, top_count=2, top_ids=top, top_logprobs=values)


async def many(_request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
    """An answer of 600 tokens at once, as a gateway that was busy gets it."""
    yield admitted()
    yield started()
    yield delta(0, range(600), "x", logprobs=scored(600))
    for response in ended(output_pb2.FINISH_REASON_STOP, completion=600):
        yield response


ASKS = [
    ("/v1/chat/completions", {**CHAT, "max_tokens": None, "logprobs": True, "top_logprobs": 2}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 100, "logprobs": 2}),
    ("/v1/responses", {"input": "a", "top_logprobs": 2}),
]


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_an_answer_with_more_of_them_than_it_may_have_ends(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    knows_tokens(monkeypatch)
    gateway.processor.plays(many)
    monkeypatch.setattr("services.gateway.answer.MAX_LOGPROBS", 600 * 3 - 1)
    reply = await gateway.ask("POST", path, body)
    assert reply.status == 400
    assert "logprobs: the answer has too many" in reply.error["message"]
    assert gateway.process.load.num_requests == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_log_probabilities_of_many_tokens_are_written_in_slices_or_a_thread(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], stream: bool
) -> None:
    """Counted, not timed: how many tokens were written on the event loop at a time."""
    knows_tokens(monkeypatch)
    at_once = []

    def noted(write: Callable[..., Any]) -> Callable[..., Any]:
        def noting(names: Any, token_ids: Sequence[int], *rest: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                at_once.append(len(token_ids))
            return write(names, token_ids, *rest)

        return noting

    monkeypatch.setattr("services.gateway.openai.logprobs.chat_logprobs", noted(chat_logprobs))
    monkeypatch.setattr("services.gateway.openai.chat.chat_logprobs", noted(chat_logprobs))
    monkeypatch.setattr(CompletionLogprobs, "add", noted(CompletionLogprobs.add))
    gateway.processor.plays(many)
    reply = await gateway.ask("POST", path, {**body, "stream": stream})
    assert reply.status == 200
    assert max(at_once, default=0) <= 256
    if path.endswith("chat/completions"):
        data = reply.body.split(b"\n\n")[0].removeprefix(b"data: ")
        first = json.loads(data)["choices"][0]["logprobs"]["content"][1]
        entry = {"token": "t1", "logprob": -0.5, "bytes": [116, 49]}
        other = {"token": "t2", "logprob": -1e-7, "bytes": [116, 50]}
        assert first["top_logprobs"][0] == entry
        assert first == {**entry, "top_logprobs": [entry, {**other, "logprob": pytest.approx(-1e-7)}]}


async def test_a_large_message_is_written_as_json_in_a_thread(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = []

    def noted(message: Message, *, json: bool) -> bytes:
        on_loop.append((message.ByteSize(), threading.current_thread() is threading.main_thread()))
        return encode(message, json=json)

    monkeypatch.setattr("services.gateway.rpc.inference.encode", noted)
    gateway.processor.plays(many)
    path = "/ringline.inference.v1.InferenceService/Generate"
    body = json.dumps({"text": "a"}).encode()
    enveloped = b"\0" + len(body).to_bytes(4, "big") + body
    reply = await gateway.ask("POST", path, enveloped, {"content-type": "application/connect+json"})
    assert reply.status == 200
    assert [size > 4096 for size, inline in on_loop if not inline] == [True]
    assert len(on_loop) > 3


def knows_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no processor is asked for the texts of tokens."""

    async def of_model(client: Any, _name: str) -> TokenTexts:
        return TokenTexts(client, "tiny", {one: f"t{one}".encode() for one in range(700)}, 100)

    monkeypatch.setattr(TokenTexts, "of_model", of_model)
