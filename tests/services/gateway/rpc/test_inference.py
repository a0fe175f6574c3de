"""InferenceService at the gateway of the running ring, over bare HTTP: stock clients are tried in tests/doors."""

from __future__ import annotations

import base64
import json
import re

import httpx2
import pytest
import ringline
from google.protobuf.message import Message
from ringline.inference.v1 import inference_pb2 as pb

from services.gateway.rpc.envelope import enclose
from tests.ring import Ring

GENERATE = pb.GenerateRequest(
    request_id="mine",
    text="Once upon",
    sampling=pb.SamplingParams(temperature=0, n=2),
    stopping=pb.StoppingParams(max_tokens=8, ignore_eos=True),
)
PATH = "/ringline.inference.v1.InferenceService/"


def post(ring: Ring, method: str, media_type: str, body: bytes, **headers: str) -> tuple[httpx2.Response, bytes]:
    given = {"content-type": media_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    answer = httpx2.post(f"{ring.http}{PATH}{method}", content=body, headers=given, timeout=60)
    return answer, answer.content


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """Flags and data of each envelope."""
    found = []
    while data:
        length = int.from_bytes(data[1:5], "big")
        found.append((data[0], data[5 : 5 + length]))
        data = data[5 + length :]
    return found


def text_of(responses: list[pb.GenerateResponse]) -> str:
    assert [responses[0].WhichOneof("event"), responses[-1].WhichOneof("event")] == ["admitted", "request_finished"]
    assert responses[-1].request_finished.usage.completion_tokens == 16
    assert {response.request_id for response in responses} == {"mine"}
    return "".join(response.delta.text for response in responses if not response.delta.choice)


@pytest.fixture(scope="module")
def answer(ring: Ring) -> str:
    with ringline.Client(ring.address) as client:
        return client.generate("Once upon", temperature=0, max_tokens=8, ignore_eos=True).text


@pytest.mark.parametrize("media_type", ["application/grpc-web", "application/grpc-web-text+proto"])
def test_a_stream_over_grpc_web(ring: Ring, answer: str, media_type: str) -> None:
    body = enclose(0, GENERATE.SerializeToString())
    is_text = "text" in media_type
    told, data = post(ring, "Generate", media_type, base64.b64encode(body) if is_text else body, grpc_timeout="60S")
    if is_text:
        data = b"".join(base64.b64decode(part) for part in re.findall(rb"[^=]+={0,2}", data))
    *messages, (flags, trailers) = frames(data)
    assert (told.status_code, told.headers["content-type"], flags) == (200, media_type, 0x80)
    assert trailers.startswith(b"grpc-status: 0\r\n")
    assert text_of([pb.GenerateResponse.FromString(message) for _, message in messages]) == answer


def test_a_stream_over_connect(ring: Ring, answer: str) -> None:
    _, data = post(ring, "Generate", "application/connect+proto", enclose(0, GENERATE.SerializeToString()))
    *messages, (flags, end) = frames(data)
    assert (flags, end) == (2, b"{}")
    assert text_of([pb.GenerateResponse.FromString(message) for _, message in messages]) == answer
    asked = {"text": "Once upon", "sampling": {"temperature": 0}, "stopping": {"maxTokens": 8, "ignoreEos": True}}
    _, data = post(ring, "Generate", "application/connect+json", enclose(0, json.dumps(asked).encode()))
    *lines, _ = (json.loads(message) for _, message in frames(data))
    assert "".join(line["delta"]["text"] for line in lines if "delta" in line) == answer


@pytest.mark.parametrize(
    ("method", "request_", "kind"),
    [
        ("Tokenize", pb.TokenizeRequest(text="Once upon"), pb.TokenizeResponse),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[300, 301]), pb.DetokenizeResponse),
        ("ListModels", pb.ListModelsRequest(), pb.ListModelsResponse),
    ],
)
def test_one_request_one_response(ring: Ring, method: str, request_: Message, kind: type[Message]) -> None:
    told, data = post(ring, method, "application/proto", request_.SerializeToString())
    assert (told.status_code, told.headers["content-type"]) == (200, "application/proto")
    message = kind.FromString(data)
    assert message.ByteSize()
    _, data = post(ring, method, "application/grpc-web+proto", enclose(0, request_.SerializeToString()))
    (_, alike), (_, trailers) = frames(data)
    assert kind.FromString(alike) == message
    assert trailers.startswith(b"grpc-status: 0\r\n")


def test_refusals(ring: Ring) -> None:
    cold = pb.GenerateRequest(request_id="mine", text="a", sampling=pb.SamplingParams(temperature=-1))
    told, data = post(ring, "Generate", "application/connect+proto", enclose(0, cold.SerializeToString()))
    (_, message), (_, end) = frames(data)
    refused = pb.GenerateResponse.FromString(message)
    assert (told.status_code, refused.request_id, refused.refused.status.code) == (200, "mine", 3)
    error = json.loads(end)["error"]
    assert (error["code"], error["message"]) == ("invalid_argument", refused.refused.status.message)
    _, data = post(ring, "Generate", "application/grpc-web", enclose(0, cold.SerializeToString()))
    assert b"grpc-status: 3\r\n" in frames(data)[-1][1]

    told, data = post(ring, "Tokenize", "application/json", b'{"model": "other", "text": "a"}')
    assert (told.status_code, json.loads(data)["code"]) == (404, "not_found")
    told, data = post(ring, "Tokenize", "application/grpc-web", enclose(0, b""), grpc_encoding="gzip")
    assert b"grpc-status: 12\r\ngrpc-message: grpc-encoding: compressed messages are not read" in data
    _, data = post(ring, "Generate", "application/connect+proto", enclose(0, b""), connect_content_encoding="gzip")
    assert json.loads(frames(data)[-1][1])["error"]["code"] == "unimplemented"
    told, data = post(ring, "Tokenize", "application/json", b"{}", content_encoding="gzip")
    assert (told.status_code, json.loads(data)["code"]) == (415, "unimplemented")
    told, _ = post(ring, "Generate", "application/json", b"{}")
    assert told.status_code == 415, "a stream has envelopes"
    endless = pb.GenerateRequest(text="a", stopping=pb.StoppingParams(ignore_eos=True))
    body = enclose(0, endless.SerializeToString())
    _, data = post(ring, "Generate", "application/connect+proto", body, connect_timeout_ms="100")
    *_, (_, finished), _, (_, end) = frames(data)
    assert pb.GenerateResponse.FromString(finished).choice_finished.finish_reason == 4, "DEADLINE"
    assert json.loads(end)["error"]["code"] == "deadline_exceeded"
    _, data = post(ring, "Generate", "application/connect+proto", body, connect_timeout_ms="0")
    assert json.loads(frames(data)[-1][1])["error"]["code"] == "deadline_exceeded"
