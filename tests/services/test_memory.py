"""However little a client sends, however much that would become: the processor's memory stays what it was."""

from __future__ import annotations

import grpc
import pytest
import ringline
from ringline.inference.v1 import inference_pb2

from services.processor.main import DESCRIPTION
from tests.abuse.wire import field
from tests.processes import resident
from tests.ring import Ring

GROWTH = 160 << 20
"""Bytes; what is sent here is 16 MiB at a time, and became 5 GiB before it was refused."""


CHAT = field(5, b"\x0a\x00" * (1 << 20))
"""A million messages that say nothing."""
SMALLER = field(5, b"\x0a\x00" * 140_000)
"""Of a size that the bundled model's requests may have."""
TEXT = field(2, b"a b " * (1 << 18))
IDS = field(2, b"\x05" * (2 << 20))


@pytest.mark.parametrize(
    ("method", "data", "problem"),
    [
        ("Generate", CHAT, "message: "),
        ("Generate", SMALLER, "chat.messages: "),
        ("Tokenize", TEXT, "message: "),
        ("Tokenize", field(2, b"a b " * (1 << 16)), "text: "),
        ("Detokenize", IDS, "message: "),
        ("Detokenize", field(2, b"\x05" * (1 << 18)), "token_ids: "),
    ],
    ids=["chat", "smaller chat", "text", "smaller text", "ids", "fewer ids"],
)
async def test_what_would_become_large_is_refused_before_it_does(
    ring: Ring, method: str, data: bytes, problem: str
) -> None:
    async with grpc.aio.insecure_channel(ring.address) as channel:
        call = channel.unary_stream(f"/{DESCRIPTION.full_name}/{method}")
        before = resident(ring.pid("processor"))
        for _ in range(8):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                async for _ in call(data, timeout=60):
                    pass
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert failure.value.details().startswith(problem)
        assert resident(ring.pid("processor")) - before < GROWTH


def test_the_library_says_what_is_too_large_for_grpc(ring: Ring) -> None:
    with ringline.Client(ring.address) as client, pytest.raises(ringline.InvalidRequest) as failure:
        client.generate("a" * (5 << 20))
    assert failure.value.reason == "TOO_LARGE"


async def test_a_frame_that_is_too_large_is_refused_and_its_session_goes_on(ring: Ring) -> None:
    async with grpc.aio.insecure_channel(ring.address) as channel:
        session = channel.stream_stream(f"/{DESCRIPTION.full_name}/Session")(timeout=60)
        limits = inference_pb2.SessionResponse.FromString(await session.read()).limits
        assert limits.max_message_bytes == 36 << 20
        for frame in (field(1, b"\0" * (3 << 20)), field(1, SMALLER)):
            await session.write(frame)
        await session.done_writing()
        refused = []
        while (data := await session.read()) is not grpc.aio.EOF:
            refused += inference_pb2.SessionResponse.FromString(data).responses
        messages = [response.refused.status.message for response in refused]
        assert [message.partition(":")[0] for message in messages] == ["message", "generate.chat.messages"]
        assert [response.in_reply_to for response in refused] == [1, 2]
        assert (await session.code()) is grpc.StatusCode.OK
