"""Messages are measured before anything is made of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.common.rpc.message_limits import MalformedMessage, MessageLimits, is_cheap_to_parse, parse
from services.ring.errors import Code, Refused

LIMITS = MessageLimits(max_bytes=10_000, max_fields=100)


def chat(messages: int, **fields: str) -> inference_pb2.SessionRequest:
    frame = inference_pb2.SessionRequest()
    for _ in range(messages):
        frame.generate.chat.messages.add(**fields)
    return frame


def test_a_message_within_its_limits_is_what_it_says() -> None:
    for message in (inference_pb2.SessionRequest(), chat(1), chat(20, role="user", content="x" * 100)):
        assert parse(inference_pb2.SessionRequest, message.SerializeToString(), LIMITS) == message


def test_bytes_are_counted() -> None:
    request = inference_pb2.TokenizeRequest(text="x" * LIMITS.max_bytes)
    with pytest.raises(Refused, match="message: 10003 bytes: expected at most 10000") as refusal:
        parse(inference_pb2.TokenizeRequest, request.SerializeToString(), LIMITS)
    assert refusal.value.status.code is Code.INVALID_ARGUMENT
    with pytest.raises(Refused, match=r"message: 10003 bytes: expected at most 10000, for two$"):
        parse(inference_pb2.TokenizeRequest, request.SerializeToString(), replace(LIMITS, reason="for two"))


def test_fields_are_counted_and_the_list_that_has_too_many_is_named() -> None:
    calls = inference_pb2.SessionRequest()
    calls.generate.chat.messages.add().tool_calls.extend([inference_pb2.ToolCall()] * 200)
    bias = engine_pb2.AttachRequest()
    bias.commands.add().submit.sampling.logit_bias.update(dict.fromkeys(range(50), 1.0))
    stops = inference_pb2.SessionRequest()
    stops.generate.stopping.stop.extend([""] * 200)
    for message, field in (
        (chat(200), "generate.chat.messages"),
        (calls, "generate.chat.messages.tool_calls"),
        (bias, "commands.submit.sampling.logit_bias"),
        (stops, "generate.stopping.stop"),
    ):
        with pytest.raises(
            Refused, match=f"^{field}[.a-z]*: the message has too many fields: expected at most 100"
        ) as refusal:
            parse(type(message), message.SerializeToString(), LIMITS)
        assert refusal.value.status.code is Code.INVALID_ARGUMENT


def test_numbers_that_are_not_packed_are_fields() -> None:
    packed = inference_pb2.DetokenizeRequest(token_ids=[5] * 1000).SerializeToString()
    assert len(parse(inference_pb2.DetokenizeRequest, packed, LIMITS).token_ids) == 1000
    with pytest.raises(Refused, match=r"^token_ids: "):
        parse(inference_pb2.DetokenizeRequest, b"\x10\x05" * 1000, LIMITS)


def test_the_number_of_fields_is_exact() -> None:
    exactly = chat(48, role="a")  # 48 messages and their roles, the chat, the request
    twice = inference_pb2.SessionRequest()
    twice.generate.text = "x" * 300  # long enough to be looked at
    data = exactly.SerializeToString() + twice.SerializeToString()
    assert parse(inference_pb2.SessionRequest, data, LIMITS).generate.text
    with pytest.raises(Refused):
        parse(inference_pb2.SessionRequest, data + b"\x10\x00", LIMITS)


def test_what_is_not_a_message_is_refused_as_protobuf_refuses_it() -> None:
    rng = random.Random(0)
    whole = chat(10, role="user", content="x" * 40).SerializeToString()
    limits = MessageLimits(max_bytes=10_000, max_fields=len(whole) // 2 - 1)
    malformed = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            expected = inference_pb2.SessionRequest.FromString(bytes(data))
        except DecodeError:
            malformed += 1
            with pytest.raises(MalformedMessage):
                parse(inference_pb2.SessionRequest, bytes(data), limits)
        else:
            try:
                assert parse(inference_pb2.SessionRequest, bytes(data), limits) == expected
            except MalformedMessage:
                assert _has_group(bytes(data))
    assert malformed > 50


def _has_group(data: bytes) -> bool:
    """protobuf steps over groups that it does not know; nothing in the contract has any."""
    return any(byte & 7 in (3, 4) for byte in data)


@pytest.mark.parametrize(
    ("data", "quick"),
    [
        (b"", True),
        (chat(20, role="user", content="x" * 1000).SerializeToString(), True),
        (b"\xff", False),
        (b"\x7b\x7c" + chat(300).SerializeToString(), False),
        (chat(300).SerializeToString(), False),
        (chat(1, content="x" * 100_000).SerializeToString(), False),
    ],
    ids=["empty", "a conversation", "no message", "a group, then many fields", "many fields", "many bytes"],
)
def test_what_takes_long_is_told_beforehand(data: bytes, quick: bool) -> None:
    assert is_cheap_to_parse(inference_pb2.SessionRequest, data) is quick
