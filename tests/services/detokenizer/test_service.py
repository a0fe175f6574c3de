"""Subscriptions over gRPC: subscribers that do not read, limits, and newer incarnations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc
from structlog.testing import capture_logs

from services.common.rpc.shared_messages import hello_message
from services.detokenizer.main import DESCRIPTION
from services.detokenizer.service import DetokenizerService
from services.detokenizer.subscribers import MAX_SUBSCRIBERS, Subscriber, Subscribers
from services.ring.identity import PeerId
from services.ring.outbox import Outboxes
from tests.services.in_process import served
from tests.waiting import until

ME = PeerId("processor-0", 5)


class Detokenizer:
    """Has no engines. ``stall_timeout``: seconds that a subscriber may read nothing."""

    def __init__(self, stall_timeout: float, outboxes: Outboxes | None = None) -> None:
        self.gone: list[PeerId] = []
        self.subscribers = Subscribers(self.gone.append, outboxes)
        self.service = DetokenizerService(
            PeerId("detokenizer-0", 1),
            self.subscribers,
            detokenizer_pb2.Load,
            stall_timeout=stall_timeout,
            max_message_bytes=1 << 22,
            drain_grace=1.0,
        )


@contextlib.asynccontextmanager
async def serving(
    detokenizer: Detokenizer, tmp_path: Path
) -> AsyncIterator[detokenizer_pb2_grpc.DetokenizerServiceStub]:
    address = f"unix:{tmp_path}/detokenizer.sock"
    narrow = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
    async with (
        served(DESCRIPTION, detokenizer.service, address),
        grpc.aio.insecure_channel(address, options=narrow) as channel,
    ):
        yield detokenizer_pb2_grpc.DetokenizerServiceStub(channel)


def hello(name: str = ME.name, incarnation: int = ME.incarnation) -> detokenizer_pb2.SubscribeRequest:
    return detokenizer_pb2.SubscribeRequest(hello=hello_message(PeerId(name, incarnation)))


async def read_to_the_end(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_nothing_is_kept_for_a_processor_that_takes_nothing(tmp_path: Path) -> None:
    detokenizer = Detokenizer(stall_timeout=0.2)
    subscribers: list[Subscriber] = []

    def add(peer: PeerId) -> Subscriber:
        """Queue more than fits the HTTP/2 window of a peer that does not read, before anything can time out."""
        subscribers.append(type(detokenizer.subscribers).add(detokenizer.subscribers, peer))
        for position in range(20):
            subscribers[0].outbox.delta("5-1", 0, position, [7], "x" * 100_000)
        return subscribers[0]

    detokenizer.subscribers.add = add  # type: ignore[method-assign]
    async with serving(detokenizer, tmp_path) as stub:
        call = stub.Subscribe(hello())
        await until(lambda: subscribers and detokenizer.subscribers.find(ME) is None)
        assert detokenizer.gone == [ME]
        assert not subscribers[0].outbox.pending
        assert not call.done(), "it has not taken its status"
        call.cancel()


async def test_a_processor_for_whom_too_much_waits_is_lost_at_once_and_nobody_else(tmp_path: Path) -> None:
    """Whatever its stall timeout is."""
    outboxes = Outboxes(max_bytes=3 << 20)
    detokenizer = Detokenizer(stall_timeout=600.0, outboxes=outboxes)
    async with serving(detokenizer, tmp_path) as stub:
        slow, other = stub.Subscribe(hello()), stub.Subscribe(hello("processor-1"))
        for call in (slow, other):
            assert (await call.read()).HasField("welcome")
        subscriber = detokenizer.subscribers.find(ME)
        assert subscriber is not None
        position = 0
        while not subscriber.given_up:
            subscriber.outbox.delta("5-1", 0, position, [7], "x" * 10_000)
            position += 1
            assert outboxes.total <= 3 << 20
            await asyncio.sleep(0 if position % 10 else 0.001)  # so that some of it is under way
        await until(lambda: detokenizer.subscribers.find(ME) is None)
        assert detokenizer.gone == [ME]
        assert (outboxes.total, subscriber.outbox.pending) == (0, False)
        neighbour = detokenizer.subscribers.find(PeerId("processor-1", ME.incarnation))
        assert neighbour is not None
        neighbour.outbox.delta("5-2", 0, 0, [7], "x")
        assert (await other.read()).outputs.texts == ["x"]
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await read_to_the_end(slow)
        assert lost.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "bytes wait, the limit for one reader" in (lost.value.details() or "")
        other.cancel()


async def test_only_so_many_may_subscribe(tmp_path: Path) -> None:
    async with serving(Detokenizer(stall_timeout=600.0), tmp_path) as stub:
        calls = [stub.Subscribe(hello(f"processor-{number}")) for number in range(MAX_SUBSCRIBERS)]
        for call in calls:
            assert (await call.read()).HasField("welcome")
        one_more = stub.Subscribe(hello("one-more"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one_more.read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        again = stub.Subscribe(hello("processor-0"))  # takes the place of its own
        assert (await again.read()).HasField("welcome")
        for call in [*calls, again]:
            call.cancel()


async def test_a_newer_life_takes_the_place_of_an_older_one_and_not_the_other_way(tmp_path: Path) -> None:
    detokenizer = Detokenizer(stall_timeout=600.0)
    async with serving(detokenizer, tmp_path) as stub:
        old = stub.Subscribe(hello())
        assert (await old.read()).HasField("welcome")
        new = stub.Subscribe(hello(incarnation=ME.incarnation + 1))
        assert (await new.read()).HasField("welcome")
        assert detokenizer.gone == [ME], "what was held for it is gone"
        async with asyncio.timeout(60):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await read_to_the_end(old)
            assert await old.code() is grpc.StatusCode.ABORTED
        late = stub.Subscribe(hello())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await late.read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert detokenizer.subscribers.find(PeerId(ME.name, ME.incarnation + 1)) is not None
        assert not new.done()
        new.cancel()


async def test_a_stream_whose_place_is_taken_ends_though_its_processor_takes_nothing(tmp_path: Path) -> None:
    detokenizer = Detokenizer(stall_timeout=1e6)
    async with serving(detokenizer, tmp_path) as stub:
        with capture_logs() as logs:
            call = stub.Subscribe(hello())
            await until(lambda: detokenizer.subscribers.find(ME))
            subscriber = detokenizer.subscribers.find(ME)
            assert subscriber is not None
            for position in range(20):
                subscriber.outbox.delta("5-1", 0, position, [7], "x" * 100_000)
            await asyncio.sleep(0.2)  # likely it writes by then
            newer = stub.Subscribe(hello(incarnation=ME.incarnation + 1))
            await until(lambda: any(log["event"] == "unsubscribed" for log in logs))
        call.cancel()
        newer.cancel()
