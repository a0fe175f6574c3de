"""Requests leave no garbage cycles: everything of them is freed at once, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.message import Message
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

import services
from services.common.rpc.call_interceptor import CallInterceptor
from services.common.rpc.open_calls import CallRegistry
from services.processor.main import DESCRIPTION
from services.ring.errors import Code, Refused, Status
from tests.services.processor.ring_requests import Ring
from tests.services.processor.ring_requests import ask as ask_ring
from tests.services.processor.service_harness import ServiceHarness, ask, read_into
from tests.services.streams import send
from tests.waiting import until

SERVICES = str(Path(services.__file__).parent)
METHOD = f"/{DESCRIPTION.full_name}/"
BAD_CHAT = inference_pb2.Chat(messages=[inference_pb2.ChatMessage()] * 100)


@contextmanager
def nothing_for_the_collector() -> Iterator[None]:
    """Fails if the collector finds anything of a service, or a message, that was left in the meantime."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(filter(None, map(_ours, gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found


def _ours(thing: object) -> str | None:
    if isinstance(thing, types.FrameType):
        return f"frame of {thing.f_code.co_qualname}" if thing.f_code.co_filename.startswith(SERVICES) else None
    if isinstance(thing, types.CoroutineType):
        return f"coroutine {thing.cr_code.co_qualname}" if thing.cr_code.co_filename.startswith(SERVICES) else None
    if type(thing).__module__.startswith("services.") or isinstance(thing, Message):
        return type(thing).__qualname__
    return None


async def refused(harness: ServiceHarness, channel: grpc.aio.Channel) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError):
        await read_into([], stub.Generate(inference_pb2.GenerateRequest(chat=BAD_CHAT)))
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Tokenize(inference_pb2.TokenizeRequest(chat=BAD_CHAT))
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[4_000_000]))


async def refused_on_a_session(harness: ServiceHarness, channel: grpc.aio.Channel) -> None:
    session = inference_pb2_grpc.InferenceServiceStub(channel).Session()
    chat = inference_pb2.GenerateRequest(request_id="chat", chat=BAD_CHAT)
    await send(session, ask(""), ask("long", "x" * 70_000), ask("too large", "x" * 500_000), chat)
    await session.done_writing()
    responses = [response async for frame in session for response in frame.responses]
    assert len(responses) == 4


async def malformed(harness: ServiceHarness, channel: grpc.aio.Channel) -> None:
    for name in ("Tokenize", "Generate", "Session"):
        call = channel.stream_stream(METHOD + name)()
        if name == "Session":
            await call.read()  # the limits
        await call.write(b"\xff" * 10)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call.read()
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def left(harness: ServiceHarness, channel: grpc.aio.Channel) -> None:
    """Their clients go while they have requests under way."""
    session = inference_pb2_grpc.InferenceServiceStub(channel).Session()
    call = channel.stream_stream(METHOD + "Generate")()  # a call with a single request would keep it in a cycle
    await send(session, ask("r"))
    await call.write(ask("r").SerializeToString())
    await until(lambda: harness.intake.num_open == 2)
    session.cancel()
    call.cancel()


async def stalled(harness: ServiceHarness, channel: grpc.aio.Channel) -> None:
    """A client takes nothing."""
    session = inference_pb2_grpc.InferenceServiceStub(channel).Session()
    await session.read()
    (client,) = harness.intake.streams
    usual = harness.service.limits
    harness.service.limits = replace(usual, stall_timeout=0.05)
    for _ in range(2000):
        client.refuse("another", 2, Status(Code.INVALID_ARGUMENT, "prompt: " + "x" * 100))
    del client
    await until(lambda: not harness.intake.streams)
    harness.service.limits = usual  # of the next session
    session.cancel()


@pytest.mark.parametrize("ends", [refused, refused_on_a_session, malformed, left, stalled])
async def test_requests_that_end_early_leave_no_cycles(
    ends, harness: ServiceHarness, channel: grpc.aio.Channel
) -> None:
    await ends(harness, channel)  # once for what is made once
    await until(lambda: not harness.intake.streams)
    with nothing_for_the_collector():
        await ends(harness, channel)
        await until(lambda: not harness.intake.streams)


class CancelledCall:
    """The context of a call whose client has gone."""

    def peer(self) -> str:
        return "unix:"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def done(self) -> bool:
        return True


async def test_a_refusal_that_nobody_waits_for_leaves_no_cycle() -> None:
    async def refuse(requests: object, context: object) -> None:
        raise Refused(Code.INVALID_ARGUMENT, "too long")

    async def handler(details: object) -> grpc.RpcMethodHandler:
        return grpc.stream_unary_rpc_method_handler(refuse)

    async def call() -> None:
        answer = await interceptor.intercept_service(handler, SimpleNamespace(method="/refuse"))
        with suppress(asyncio.CancelledError):
            await answer.stream_unary(None, CancelledCall())

    interceptor = CallInterceptor(CallRegistry(10, 10), 600.0, lambda *_: None)
    await asyncio.create_task(call())
    with nothing_for_the_collector():
        await asyncio.create_task(call())


def test_answered_requests_leave_no_cycles(world: Ring) -> None:
    world.ask(ask_ring(5))
    world.settle()
    world.received.clear()
    with nothing_for_the_collector():
        world.ask(ask_ring(5))
        world.settle()
        assert world.received
        world.received.clear()
