"""Bare stubs with the service config of docs/how-to/channels.md: what one that drains refuses, another answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import pytest
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.clients.service_config import draining_processor, service_config

CALLS = 4


@pytest.fixture
async def addresses(ring) -> AsyncIterator[str]:
    """Of a processor that drains, and of one that answers, as gRPC reads a list of addresses."""
    async with draining_processor() as draining:
        yield f"ipv4:{draining},{ring.address}"


def ask() -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(text="Once upon a time")
    request.stopping.max_tokens = 1
    return request


async def generate(stub: inference_pb2_grpc.InferenceServiceStub) -> str | None:
    """The last event."""
    *_, last = [response async for response in stub.Generate(ask(), timeout=60)]
    return last.WhichOneof("event")


async def session(stub: inference_pb2_grpc.InferenceServiceStub) -> bool:
    """Whether it begins."""
    call = stub.Session(timeout=60)
    first = await call.read()
    await call.done_writing()
    return bool(first.HasField("limits"))


async def test_python(addresses: str) -> None:
    options = [("grpc.service_config", service_config()), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(addresses, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert [await generate(stub) for _ in range(CALLS)] == ["request_finished"] * CALLS
        assert all([await session(stub) for _ in range(CALLS)])


async def generate_for_ever(stub: inference_pb2_grpc.InferenceServiceStub) -> None:
    async with asyncio.timeout(60):
        while True:
            await generate(stub)


async def test_without_retries_calls_fail(addresses: str) -> None:
    """So that the test above shows something: every second call goes to the processor that drains."""
    config = json.loads(service_config())
    del config["methodConfig"]
    async with grpc.aio.insecure_channel(addresses, options=[("grpc.service_config", json.dumps(config))]) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="about to end") as refused:
            await generate_for_ever(stub)  # at first, perhaps, it is connected to one alone
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
