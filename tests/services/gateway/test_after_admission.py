"""Requests that fail after the ring has admitted them: they are cancelled there, and keep their status."""

import asyncio

import grpc
import pytest
from ringline.types.v1 import output_pb2

from tests.clients.scripted_server import admitted, ended, started, status
from tests.services.gateway.http_harness import CHAT, Running, begun, request
from tests.waiting import until


async def waiting(_request):
    """A request that no engine begins."""
    yield admitted()
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "logprobs": True}),
        ("/v1/completions", {"prompt": "Hi", "logprobs": 1}),
        ("/v1/completions", {"prompt": ["Hi", "Ho"], "logprobs": 1}),
        ("/v1/completions", {"prompt": [1], "echo": True}),
        ("/v1/responses", {"input": "Hi", "top_logprobs": 1}),
    ],
)
async def test_a_failed_look_up_of_tokens_cancels_the_request(gateway: Running, path, body, stream) -> None:
    service = gateway.processor.service
    gateway.processor.plays(begun)
    service.unary_failures = [grpc.StatusCode.PERMISSION_DENIED]
    reply = await gateway.ask("POST", path, {**body, "stream": stream})
    assert reply.status == 403
    async with asyncio.timeout(5):
        await service.cancelled.wait()
    await until(lambda: gateway.process.load.num_requests == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Hi", ["Hi", "Ho"]])
async def test_a_client_that_leaves_before_an_engine_begins_cancels_the_request(gateway: Running, prompt, stream):
    gateway.processor.plays(waiting)
    async with gateway.connection() as connection:
        connection.send(request("POST", "/v1/completions", {"prompt": prompt, "stream": stream}))
        await gateway.processor.service.asked.wait()
        await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await gateway.processor.service.cancelled.wait()
    await until(lambda: gateway.process.load.num_requests == 0)
    assert gateway.process.metrics._requests == {("/v1/completions", "499"): 1}


async def test_the_first_of_many_that_fails_ends_the_others(gateway: Running) -> None:
    async def fails(asked):
        yield admitted()
        yield started()
        for response in ended(
            output_pb2.FINISH_REASON_ERROR, completion=0, error=status(grpc.StatusCode.INTERNAL, "x")
        ):
            yield response

    gateway.processor.plays(begun, fails)
    async with asyncio.timeout(5):
        reply = await gateway.ask("POST", "/v1/completions", {"prompt": ["Hi", "Ho"]})
        assert reply.status == 500
        await gateway.processor.service.cancelled.wait()
