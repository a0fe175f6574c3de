"""How streams of peers end, and how their frames are carried out."""

from __future__ import annotations

import asyncio
import threading

import pytest
from ringline.engine.v1 import engine_pb2

from engine_core.config import ModelSpec
from services.common.rpc import message_limits as parsing
from services.common.rpc.message_limits import MessageLimits
from services.common.rpc.shared_messages import hello_message
from services.engine.async_engine import AsyncEngine, LinkWaker
from services.engine.attach_stream import MAX_PENDING_REJECTIONS, Attachment
from services.ring.errors import Code, Refused
from services.ring.identity import PeerId
from services.ring.outbound_link import OutboundLink
from tests.waiting import until

ME = PeerId("processor-0", 1)


class Peer:
    """It says hello and what it has to say, and takes nothing."""

    def __init__(self, *frames: engine_pb2.AttachRequest, me: PeerId = ME) -> None:
        self._frames = [
            frame.SerializeToString() for frame in (engine_pb2.AttachRequest(hello=hello_message(me)), *frames)
        ]
        self.said = asyncio.Event()
        self.writing = asyncio.Event()

    async def read(self) -> bytes:
        if not self._frames:
            self.said.set()
            await asyncio.Event().wait()
        return self._frames.pop(0)

    async def write(self, frame: engine_pb2.AttachResponse) -> None:
        self.writing.set()
        await asyncio.Event().wait()


class Engine(AsyncEngine):
    """Shows the link of the peer that attached last."""

    link: OutboundLink

    def attach(self, peer: PeerId) -> LinkWaker:
        waker = super().attach(peer)
        self.link = waker.link
        return waker


def attach(engine: AsyncEngine, peer: Peer) -> asyncio.Task[None]:
    engine.model = ModelSpec("m", "M", 100, 50, eos_token_ids=(1,), dtype="float32")
    attachment = Attachment(
        engine, PeerId("engine-0", 1), engine_pb2.Load, stall_timeout=1e6, max_message_bytes=1 << 22
    )
    return asyncio.create_task(attachment.run(peer, peer))  # type: ignore[arg-type]


async def test_a_stream_whose_place_is_taken_ends_though_its_peer_takes_nothing() -> None:
    engine, peer = AsyncEngine(orphan_grace=1.0, max_ledgers=0), Peer()
    stream = attach(engine, peer)
    async with asyncio.timeout(30):
        await peer.writing.wait()
        engine.attach(PeerId(ME.name, ME.incarnation + 1))
        with pytest.raises(Refused) as refused:
            await stream
    assert refused.value.status.code is Code.ABORTED


async def test_large_frames_are_measured_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred peers may send them at once."""
    parsed: list[tuple[int, bool]] = []

    def noted(kind: type[engine_pb2.AttachRequest], data: bytes, limits: MessageLimits) -> engine_pb2.AttachRequest:
        parsed.append((len(data), threading.current_thread() is threading.main_thread()))
        return parsing.parse(kind, data, limits)

    monkeypatch.setattr("services.engine.attach_stream.parse", noted)
    done = engine_pb2.Command(done=engine_pb2.Done(request_id="1-1", epoch=1))
    long_prompt = engine_pb2.Command(submit=engine_pb2.Submit(prompt_token_ids=[40] * 10_000))
    frames = [engine_pb2.AttachRequest(commands=commands) for commands in ([done], [long_prompt], [done] * 1000)]
    peer = Peer(*frames)
    stream = attach(AsyncEngine(orphan_grace=1.0, max_ledgers=0), peer)
    async with asyncio.timeout(30):
        await peer.said.wait()
    assert parsed[-3:] == [
        (frame.ByteSize(), at_once) for frame, at_once in zip(frames, (True, True, False), strict=True)
    ]
    stream.cancel()


async def test_small_frames_do_not_wait_for_large_ones_of_other_peers() -> None:
    engine = AsyncEngine(orphan_grace=1.0, max_ledgers=0)
    done = engine_pb2.Command(done=engine_pb2.Done(request_id="1-1", epoch=1))
    large, small = (
        Peer(engine_pb2.AttachRequest(commands=[done] * count), me=PeerId(f"processor-{count}", 1))
        for count in (1000, 1)
    )
    streams = []
    async with asyncio.timeout(30):
        async with engine.large_frames.turn(0):
            for peer in (large, small):
                streams.append(attach(engine, peer))
                await peer.writing.wait()
            await small.said.wait()
            assert not large.said.is_set()
        await large.said.wait()
    for stream in streams:
        stream.cancel()


async def test_a_peer_that_does_not_read_rejections_has_no_more_commands_carried_out() -> None:
    engine = Engine(orphan_grace=1.0, max_ledgers=0)
    peer = Peer(engine_pb2.AttachRequest(commands=[engine_pb2.Command()] * (2 * MAX_PENDING_REJECTIONS)))
    stream = attach(engine, peer)
    async with asyncio.timeout(30):
        await peer.writing.wait()
        link = engine.link
        await until(lambda: link.num_rejections > MAX_PENDING_REJECTIONS)
        for _ in range(100):
            await asyncio.sleep(0)
    assert link.num_rejections == MAX_PENDING_REJECTIONS + 1
    assert not peer.said.is_set()
    stream.cancel()
