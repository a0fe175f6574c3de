"""HTTP/2 attacks on the processor's port cost the attacker its connection, and nobody else anything."""

from __future__ import annotations

import asyncio
import struct

import grpc
import pytest
import ringline
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.abuse.wire import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    WAIT,
    Connection,
    frame,
    headers,
)
from tests.processes import resident
from tests.ring import Ring

MAX_STREAMS = 1024


async def test_attackers_disturb_nobody(ring: Ring) -> None:
    before = resident(ring.pid("processor"))
    async with ringline.AsyncClient(ring.address) as client, Connection(ring.address) as silent:
        expected = await client.generate("Once upon a time", max_tokens=16, temperature=0)
        stream = client.stream("Once upon a time", max_tokens=300, ignore_eos=True)
        await anext(aiter(stream))
        await rapid_reset(ring.address)
        await ping_flood(ring.address)
        await continuation_flood(ring.address)
        await large_metadata(ring.address)
        await reflection_that_is_dropped(ring.address)
        await half_open_streams(ring)
        await too_many_streams(ring.address)
        answer = await client.generate("Once upon a time", max_tokens=16, temperature=0)
        assert answer.text == expected.text
        rest = await stream.result()
        assert (rest.usage.completion_tokens, rest.resumed) == (300, 0)
        await silent.wait_closed()
    assert resident(ring.pid("processor")) - before < 128 << 20


async def rapid_reset(address: str) -> None:
    """Calls that are reset at once (CVE-2023-44487)."""
    async with Connection(address) as attacker:
        await attacker.send_preface()
        for stream in range(1, 20_001, 2):
            call = frame(HEADERS, END_HEADERS, stream, headers())
            if not await attacker.write(call + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))):
                break


async def ping_flood(address: str) -> None:
    async with Connection(address) as attacker:
        await attacker.send_preface()
        for _ in range(10_000):
            if not await attacker.write(frame(PING, 0, 0, b"12345678")):
                break
        await attacker.wait_closed()


async def continuation_flood(address: str) -> None:
    """Endless headers (CVE-2024-27316 and others): gRPC reads on, and keeps nothing of them."""
    async with Connection(address) as attacker:
        await attacker.send_preface()
        await attacker.write(frame(HEADERS, 0, 1, headers()))
        more = headers(**{"x-more": "y" * 100}) * 80
        while attacker.sent < 256 << 20 and await attacker.write(frame(CONTINUATION, 0, 1, more[: 16 << 10])):
            pass


async def large_metadata(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        large = (("x-large", "y" * 100_000),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(inference_pb2.ListModelsRequest(), metadata=large, timeout=WAIT)
    assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


async def reflection_that_is_dropped(address: str) -> None:
    """Reflection calls cancelled after one answer: what was left of them once crashed the process."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        for _ in range(500):
            call = stub.ServerReflectionInfo(timeout=WAIT)
            await call.write(reflection_pb2.ServerReflectionRequest(file_by_filename="x"))
            await call.read()
            call.cancel()


async def half_open_streams(ring: Ring) -> None:
    """Calls with unfinished messages, and one that sends a byte at a time."""
    begun = frame(DATA, 0, 1, b"\0\0\0\1\0" + b"\x0a")  # 256 bytes are announced
    async with Connection(ring.address) as attacker:
        await attacker.send_preface()
        for stream in range(1, 4_001, 2):
            path = "/ringline.inference.v1.InferenceService/" + ("Session", "Generate")[stream // 2 % 2]
            call = frame(HEADERS, END_HEADERS, stream, headers(path))
            if not await attacker.write(call + begun[:5] + struct.pack(">I", stream) + begun[9:]):
                break
        for _ in range(20):
            if not await attacker.write(frame(DATA, 0, 1, b"x")):
                break
        async with ringline.AsyncClient(ring.address) as client:
            await client.generate("Once", max_tokens=1)
    async with asyncio.timeout(WAIT):
        while ring.metric("processor", "ringline_waiting_requests"):  # noqa: ASYNC110 - counted 20 times a second
            await asyncio.sleep(0.05)


async def too_many_streams(address: str) -> None:
    """Calls without a message, more than a connection may have: the server ends those beyond the limit, and others."""
    async with Connection(address) as attacker:
        await attacker.send_preface()
        for stream in range(1, 2 * (MAX_STREAMS + 100), 2):
            assert await attacker.write(frame(HEADERS, END_HEADERS, stream, headers()))
        await attacker.wait_streams_ended(100)
