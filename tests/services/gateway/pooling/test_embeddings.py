"""``/v1/embeddings``: what the ring is asked, and what is made of its vectors."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import threading
from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb

from services.gateway.pooling import endpoint
from tests.services.gateway.http_harness import running
from tests.services.gateway.pooling.conftest import Doors
from tests.services.gateway.pooling.fake_ring import LABELS, PoolingInference, bad_field, float32, ids_of, vector
from tests.waiting import until

PATH = "/v1/embeddings"


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a text", ["a text"]),
        (["one", "two", ""], ["one", "two", ""]),
        ([3, 1, 4], [[3, 1, 4]]),
        ([[3, 1], [4]], [[3, 1], [4]]),
    ],
)
async def test_inputs_of_every_kind(doors: Doors, given, inputs) -> None:
    answer = await doors.ask(PATH, model="small", input=given)
    (asked,) = doors.ring.asked
    ids = [list(map(ord, one)) if isinstance(one, str) else one for one in inputs]
    assert [ids_of(one) for one in asked.inputs] == ids
    assert [one.WhichOneof("input") for one in asked.inputs] == [
        "text" if isinstance(one, str) else "token_ids" for one in inputs
    ]
    assert answer["object"] == "list"
    assert answer["model"] == "small"
    assert answer["id"].startswith("embd-")
    tokens = sum(map(len, ids))
    assert answer["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert [(one["object"], one["index"]) for one in answer["data"]] == [("embedding", at) for at in range(len(ids))]
    for one, of in zip(answer["data"], ids, strict=True):
        assert [float32(number) for number in one["embedding"]] == vector(of, 8)


async def test_numbers_have_as_few_digits_as_tell_a_float32(doors: Doors) -> None:
    given = [float32(number) for number in (0.1, 1.5, -2.0, 1e-30, 3.4028235e38, 0.1 + 2**-27, 1 / 3)]
    doors.ring.embedded = pb.EmbedResponse(values=struct.pack("<7f", *given), dimensions=7)
    reply = await doors.post(PATH, input="a")
    written = reply.body.partition(b'"embedding":[')[2].partition(b"]")[0].split(b",")
    assert [float32(float(one)) for one in written] == given
    assert written[:3] == [b"0.1", b"1.5", b"-2.0"]
    assert all(len(one.partition(b"e")[0].strip(b"-").replace(b".", b"").lstrip(b"0")) <= 9 for one in written)


async def test_base64_is_the_same_numbers(doors: Doors) -> None:
    for names in ({"encoding_format": "base64"}, {"embedding_type": "base64"}):
        answer = await doors.ask(PATH, input=["ab", "c"], **names)
        for one, text in zip(answer["data"], ("ab", "c"), strict=True):
            packed = base64.b64decode(one["embedding"])
            assert packed == struct.pack("<8f", *vector(list(map(ord, text)), 8))


async def test_options_reach_the_ring(doors: Doors) -> None:
    answer = await doors.ask(
        PATH,
        input="abc",
        model="small",
        dimensions=4,
        normalize=False,
        prompt_name="query",
        truncate_prompt_tokens=5,
        truncation_side="left",
        add_special_tokens=False,
        priority=-2,
        cache_salt="salt",
        request_id="mine",
        user="someone",
    )
    (asked,) = doors.ring.asked
    assert asked.model == "small"
    assert (asked.dimensions, asked.normalize, asked.prompt_name) == (4, False, "query")
    options = asked.options
    assert (options.truncation, options.max_input_tokens) == (pb.TRUNCATION_START, 5)
    assert options.add_special_tokens is False
    assert (options.priority, options.cache_salt) == (-2, "salt")
    assert asked.request_id.startswith("mine-")
    assert answer["id"] == "embd-mine"
    assert len(answer["data"][0]["embedding"]) == 4


async def test_what_is_not_given_is_left_to_the_ring(doors: Doors) -> None:
    await doors.ask(PATH, input="abc", normalize=None, dimensions=None)
    (asked,) = doors.ring.asked
    assert {field.name for field, _ in asked.ListFields()} == {"request_id", "inputs", "options"}
    assert not asked.options.ListFields()


@pytest.mark.parametrize(
    ("fields", "truncation", "tokens"),
    [
        ({"truncate_prompt_tokens": -1}, pb.TRUNCATION_END, 0),
        ({"truncate": True}, pb.TRUNCATION_END, 0),
        ({"truncate": True, "truncation_direction": "Left"}, pb.TRUNCATION_START, 0),
        ({"truncate_prompt_tokens": 3, "truncate": False}, pb.TRUNCATION_END, 3),
        ({"truncate": False}, pb.TRUNCATION_UNSPECIFIED, 0),
        ({"truncation_side": "left"}, pb.TRUNCATION_UNSPECIFIED, 0),
    ],
)
async def test_what_becomes_of_long_inputs(doors: Doors, fields, truncation, tokens) -> None:
    await doors.ask(PATH, input="abc", **fields)
    options = doors.ring.asked[0].options
    assert (options.truncation, options.max_input_tokens) == (truncation, tokens)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [[1, -1]]}, "input[0][1]"),
        ({"input": [2**32]}, "input[0]"),
        ({"input": [[True]]}, "input[0][0]"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
        ({"input": "a", "priority": 2**40}, "priority"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate": True, "truncation_side": "both"}, "truncation_side"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "endianness": "big"}, "endianness"),
        ({"input": "a", "task": "retrieval.query"}, "task"),
        ({"input": "a", "input_type": "query"}, "input_type"),
        ({"input": "a", "use_activation": True, "normalize": False}, "use_activation"),
        ({"input": "a", "request_id": "two words"}, "request_id"),
    ],
)
async def test_what_is_refused_before_a_processor_is_asked(doors: Doors, body, param) -> None:
    status, told, message = await doors.refused(PATH, **body)
    assert (status, told) == (400, param)
    assert message.startswith(f"{param}: ")
    assert not doors.ring.asked


@pytest.mark.parametrize(
    ("given", "field", "param"),
    [
        (["a", "b"], "inputs[1]", "input[1]"),
        (["a", "b"], "inputs[1].text", "input[1]"),
        ("a", "inputs[0]", "input"),
        ([5], "inputs[0].token_ids", "input"),
        ([[5], [6]], "inputs[1].token_ids.ids[0]", "input[1][0]"),
        ("a", "dimensions", "dimensions"),
        ("a", "prompt_name", "prompt_name"),
        ("a", "options.max_input_tokens", "truncate_prompt_tokens"),
        ("a", "options.priority", "priority"),
    ],
)
async def test_a_processors_refusal_names_the_bodys_field(doors: Doors, given, field, param) -> None:
    doors.ring.refuses(*bad_field(field, "it is wrong"))
    assert await doors.refused(PATH, input=given) == (400, param, f"{param}: it is wrong")


async def test_an_input_that_is_too_long_is_told_in_clients_words(doors: Doors) -> None:
    problem = "70 tokens are too long: expected at most 64 (options.truncation cuts longer ones)"
    doors.ring.refuses(*bad_field("inputs[2]", problem))
    for path, field, name, cut in (
        (PATH, "input", "input[2]", "truncate_prompt_tokens"),
        ("/embed", "inputs", "inputs[2]", "truncate"),
    ):
        reply = await doors.post(path, **{field: ["a", "b", "c"]})
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, name, "context_length_exceeded")
        expected = f"{name}: 70 tokens are too long: expected at most 64 ({cut} cuts longer ones). This model's maximum"
        assert reply.error["message"] == f"{expected} context length is 64 tokens."


async def test_a_model_for_something_else_is_told_in_paths(doors: Doors) -> None:
    doors.ring.refuses(grpc.StatusCode.FAILED_PRECONDITION, "model: 'a' generates text (Generate, Session)")
    message = "model: 'a' generates text (/v1/chat/completions, /v1/completions)"
    assert await doors.refused(PATH, input="a") == (400, "model", message)


async def test_other_failures_keep_their_status(doors: Doors) -> None:
    info = error_details_pb2.ErrorInfo(domain="ringline", reason="OVERLOAD")
    doors.ring.refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", info)
    reply = await doors.post(PATH, input="a")
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    doors.ring.refuses(grpc.StatusCode.FAILED_PRECONDITION, "tiny generates text")
    reply = await doors.post(PATH, input="a")
    assert (reply.status, reply.error["message"]) == (400, "tiny generates text")
    doors.ring.refuses(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    assert (await doors.post(PATH, input="a")).status == 501


@pytest.mark.parametrize(
    "told",
    [
        pb.EmbedResponse(),
        pb.EmbedResponse(values=bytes(4), dimensions=1),
        pb.EmbedResponse(values=bytes(12), dimensions=2),
        pb.EmbedResponse(values=bytes(8), dimensions=1, counts=[2]),
    ],
)
async def test_a_result_that_is_none_of_the_inputs_is_no_answer(doors: Doors, told: pb.EmbedResponse) -> None:
    doors.ring.embedded = told
    reply = await doors.post(PATH, input=["a", "b"])
    assert (reply.status, reply.error["code"]) == (500, "internal")


async def test_who_asks_is_passed_on(doors: Doors) -> None:
    headers = {"authorization": "Bearer key", "x-ringline-tenant": "them", "x-request-id": "its-id"}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = await doors.gateway.ask("POST", PATH, {"input": "a"}, headers | {"traceparent": trace})
    assert reply.headers["x-request-id"] == "its-id"
    metadata = doors.ring.metadata[-1]
    assert (metadata["authorization"], metadata["x-ringline-tenant"]) == ("Bearer key", "them")
    assert doors.ring.asked[-1].options.traceparent == trace
    assert doors.ring.asked[-1].request_id.startswith("its-id-")


async def test_a_client_that_goes_away_cancels_its_request(doors: Doors) -> None:
    doors.ring.waits = True
    asking = asyncio.create_task(doors.post(PATH, input="a"))
    await until(lambda: doors.ring.asked)
    asking.cancel()
    await asyncio.wait_for(doors.ring.cancelled.wait(), 10)
    await until(lambda: doors.gateway.process.load.num_requests == 0)


async def test_a_caller_whom_processors_do_not_know_keeps_no_session(doors: Doors) -> None:
    doors.ring.refuses(grpc.StatusCode.UNAUTHENTICATED, "who?")
    reply = await doors.gateway.ask("POST", PATH, {"input": "a"}, {"authorization": "Bearer guess"})
    assert (reply.status, len(doors.gateway.process.callers)) == (401, 0)


async def test_browsers_ask_by_the_contract_itself(doors: Doors) -> None:
    path = "/ringline.inference.v1.InferenceService/"
    answer = await doors.ask(f"{path}Embed", inputs=[{"text": "ab"}, {"tokenIds": {"ids": [3]}}])
    assert base64.b64decode(answer["values"]) == struct.pack("<16f", *vector([97, 98], 8), *vector([3], 8))
    answer = await doors.ask(f"{path}Score", queries=[{"text": "ab"}], documents=[{"text": "ab"}])
    assert answer["scores"] == [1]
    answer = await doors.ask(f"{path}Classify", inputs=[{"text": "ab"}])
    assert answer["labels"] == list(LABELS)
    await until(lambda: doors.gateway.process.load.num_requests == 0)
    text = (await doors.gateway.ask("GET", "/metrics")).body.decode()
    assert f'ringline_http_prompt_tokens_total{{endpoint="{path}Embed",model_name=""}} 3.0' in text


async def test_tokens_are_counted(doors: Doors) -> None:
    await doors.ask(PATH, input=["abc", "de"])
    await until(lambda: doors.gateway.process.load.num_requests == 0)
    text = (await doors.gateway.ask("GET", "/metrics")).body.decode()
    assert f'ringline_http_prompt_tokens_total{{endpoint="{PATH}",model_name=""}} 5.0' in text


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
async def test_a_large_answer_is_written_in_a_thread_piece_by_piece(
    encoding_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,048 vectors of 256 numbers; nothing large is made on the event loop, and it is never whole in memory."""
    ring, numbers = PoolingInference(256), vector([1], 256)
    ring.embedded = pb.EmbedResponse(values=struct.pack("<256f", *numbers) * 2048, dimensions=256)
    on_loop: list[bool] = []
    sizes: list[int] = []
    write_next = endpoint._next

    def write(pieces: Iterator[bytes]) -> bytes:
        on_loop.append(threading.current_thread() is threading.main_thread())
        sizes.append(len(piece := write_next(pieces)))
        return piece

    monkeypatch.setattr(endpoint, "_next", write)
    async with running(ring) as gateway:
        reply = await gateway.ask("POST", PATH, {"input": ["a"] * 2048, "encoding_format": encoding_format})
    assert reply.headers["transfer-encoding"] == "chunked"
    assert not any(on_loop)
    assert sum(sizes) == len(reply.body)
    assert max(sizes) < 2 * endpoint._PIECE_BYTES < len(reply.body)
    answer = json.loads(reply.body)
    assert len(answer["data"]) == 2048
    last = answer["data"][-1]["embedding"]
    found = list(struct.unpack("<256f", base64.b64decode(last))) if encoding_format == "base64" else last
    assert list(map(float32, found)) == numbers


async def test_an_answer_of_a_few_vectors_has_a_length(doors: Doors) -> None:
    reply = await doors.post(PATH, input=["a"] * 300)  # written in a thread, and less than a piece
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert len(reply.json()["data"]) == 300
