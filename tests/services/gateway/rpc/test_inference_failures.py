"""InferenceService where it ends badly: late, unauthenticated, without its client. The processor is scripted."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2

from services.gateway.rpc.envelope import enclose
from tests.clients.scripted_server import admitted, delta, ended, forever, play, refusal, status
from tests.services.gateway.http_harness import SECONDS, Reply, Running, begun, request
from tests.waiting import until

PATH = "/ringline.inference.v1.InferenceService/"
ASKED = enclose(0, pb.GenerateRequest(text="Hi").SerializeToString())


async def generate(gateway: Running, media_type: str, **headers: str) -> Reply:
    return await gateway.ask("POST", PATH + "Generate", ASKED, {"content-type": media_type, **headers})


async def test_a_late_failure_is_the_status_after_what_came(gateway: Running) -> None:
    gateway.processor.plays(play(admitted(), delta(0, [10], "a"), delta(7, [11], "b")))
    reply = await generate(gateway, "application/grpc-web")
    assert reply.status == 200
    assert b"\ngrpc-message: the server broke the protocol: a delta" in reply.body
    assert b"grpc-status: 13\r\n" in reply.body
    assert reply.body.count(b"grpc-status") == 1
    reply = await generate(gateway, "application/connect+proto")
    end = reply.body[reply.body.rindex(b"\x02\x00\x00\x00") + 5 :]
    assert json.loads(end)["error"]["code"] == "internal"


async def test_a_failed_choice_is_an_event_that_json_can_show(gateway: Running) -> None:
    info = pb.GenerateRequest(text="of a type that nobody knows")
    problem = status(grpc.StatusCode.INTERNAL, "poison", info)
    end = ended(output_pb2.FINISH_REASON_ERROR, completion=0, error=problem)
    gateway.processor.plays(play(admitted(), end))
    body = enclose(0, b'{"text": "Hi"}')
    headers = {"content-type": "application/connect+json"}
    reply = await gateway.ask("POST", PATH + "Generate", body, headers)
    assert b'"error": {"code": 13, "message": "poison"}' in reply.body
    assert reply.body.endswith(b"\x02\x00\x00\x00\x02{}")


@pytest.mark.parametrize(("own_ms", "code"), [(None, 4), (70_000, 4), (50_000, 0)])
async def test_a_call_whose_own_time_passed_ends_with_that_status(gateway: Running, own_ms, code) -> None:
    gateway.processor.plays(play(admitted(), ended(output_pb2.FINISH_REASON_DEADLINE, completion=0)))
    asked = enclose(0, pb.GenerateRequest(text="Hi", timeout_ms=own_ms).SerializeToString())
    headers = {"content-type": "application/grpc-web", "grpc-timeout": "60S"}
    reply = await gateway.ask("POST", PATH + "Generate", asked, headers)
    assert f"grpc-status: {code}\r\n".encode() in reply.body


async def test_an_unknown_caller_is_told_so_and_forgotten(gateway: Running) -> None:
    gateway.processor.plays(play(refusal(grpc.StatusCode.UNAUTHENTICATED, "who?")))
    reply = await generate(gateway, "application/grpc-web", authorization="Bearer guess")
    assert (reply.status, b"grpc-status: 16\r\n" in reply.body) == (200, True)
    assert len(gateway.process.callers) == 0
    gateway.processor.service.unary_failures = [grpc.StatusCode.UNAUTHENTICATED]
    given = {"content-type": "application/json", "authorization": "Bearer guess"}
    reply = await gateway.ask("POST", PATH + "Tokenize", b'{"text": "Hi"}', given)
    assert (reply.status, json.loads(reply.body)["code"]) == (401, "unauthenticated")
    assert len(gateway.process.callers) == 0


async def test_a_stream_that_outlasts_the_drain_may_be_sent_again(gateway: Running) -> None:
    gateway.processor.plays(begun)
    asking = asyncio.create_task(generate(gateway, "application/grpc-web"))
    await until(lambda: gateway.processor.service.requests)
    await gateway.process.callers.close()
    reply = await asking
    assert b"grpc-status: 14\r\ngrpc-message: the gateway ended" in reply.body


async def test_a_client_that_goes_away_cancels(gateway: Running) -> None:
    gateway.processor.plays(forever)
    async with gateway.connection() as connection:
        connection.send(request("POST", PATH + "Generate", ASKED, {"content-type": "application/grpc-web"}))
        await connection.reader.readuntil(b"\x00\x00\x00\x00")
    async with asyncio.timeout(SECONDS):
        await gateway.processor.service.cancelled.wait()
