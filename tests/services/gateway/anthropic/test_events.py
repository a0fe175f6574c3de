"""The events of a message: blocks that begin, grow and end one after the other, and an end that says why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from ringline import Admitted, Content, Event, FinishReason, Part, Reasoning, ToolCallPiece, Usage
from ringline.types.v1 import output_pb2, part_pb2

from services.gateway.anthropic.events import SIGNATURE, MessageEvents
from tests.clients.scripted_server import admitted, call, delta, ended, play, started
from tests.services.gateway.answers import answers, blocks, deltas, events_in, finished
from tests.services.gateway.http_harness import CHAT, running

USAGE = Usage(30, 10, 7, 2)
KINDS = {"content": "text", "reasoning": "thinking", "call": "tool_use"}


def written(ring_events: Sequence[Event], *, room: int = 100) -> list[dict[str, Any]]:
    """The events of a message whose request asked for 100 tokens."""
    events = MessageEvents("msg_1", max_tokens=100)
    data = events.begin(Admitted("tiny", 30, None, {"max_tokens": room}, "s"), "tiny")
    return events_in(data + b"".join(map(events.add, ring_events)) + events.end(USAGE))


@settings(max_examples=30)
@given(answers())
def test_blocks_come_one_after_the_other_with_all_of_their_text(parts: list[Part]) -> None:
    start, *middle, delta, stop = written([*deltas(*parts), finished()])
    assert [start["type"], delta["type"], stop["type"]] == ["message_start", "message_delta", "message_stop"]
    expected: list[dict[str, Any]] = []
    texts = []
    for event in middle:
        kind, index = event["type"].removeprefix("content_block_"), event["index"]
        if kind == "start":
            assert index == len(texts)
            texts.append((event["content_block"]["type"], ""))
        elif kind == "delta":
            assert index == len(texts) - 1
            change = {name: value for name, value in event["delta"].items() if name not in ("type", "signature")}
            texts[-1] = (texts[-1][0], texts[-1][1] + "".join(change.values()))
        else:
            assert (kind, index) == ("stop", len(texts) - 1)
            expected.append(event)
    assert len(expected) == len(texts)
    assert texts == [(KINDS[kind], text) for kind, text in blocks(parts)]


def test_each_block_in_full() -> None:
    parts = [
        Reasoning("Hm"),
        Content('Say "hi"'),
        ToolCallPiece(0, "call_a", "look", '{"a"'),
        ToolCallPiece(0, "", "", ":1}"),
    ]
    start, *middle, delta, _ = written([*deltas(*parts), finished()])
    assert start["message"] == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 30,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    begun = [event["content_block"] for event in middle if event["type"] == "content_block_start"]
    assert begun == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "call_a", "name": "look", "input": {}},
    ]
    assert [event["delta"] for event in middle if event["type"] == "content_block_delta"] == [
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "signature_delta", "signature": SIGNATURE},
        {"type": "text_delta", "text": 'Say "hi"'},
        {"type": "input_json_delta", "partial_json": '{"a"'},
        {"type": "input_json_delta", "partial_json": ":1}"},
    ]
    assert delta["usage"] == {
        "input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 10,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 2},
    }


CALL = ToolCallPiece(0, "call_a", "look", "{}")
CUT = ToolCallPiece(0, "call_a", "look", '{"a": "')


@pytest.mark.parametrize(
    ("part", "reason", "stop", "room", "expected"),
    [
        (Content("a"), FinishReason.STOP, 2, 100, ("end_turn", None)),
        (Content("a"), FinishReason.STOP, "END", 100, ("stop_sequence", "END")),
        (Content("a"), FinishReason.LENGTH, None, 100, ("max_tokens", None)),
        (Content("a"), FinishReason.LENGTH, None, 99, ("model_context_window_exceeded", None)),
        (CALL, FinishReason.STOP, 2, 100, ("tool_use", None)),
        (CALL, FinishReason.LENGTH, None, 100, ("max_tokens", None)),
        (CUT, FinishReason.STOP, 2, 100, ("end_turn", None)),
        (CUT, FinishReason.STOP, "END", 100, ("stop_sequence", "END")),
        (CUT, FinishReason.LENGTH, None, 100, ("max_tokens", None)),
    ],
)
def test_why_a_message_ends(
    part: Part, reason: FinishReason, stop: int | str | None, room: int, expected: tuple[str, str | None]
) -> None:
    *_, delta, _ = written([*deltas(part), finished(reason, stop)], room=room)
    assert (delta["delta"]["stop_reason"], delta["delta"]["stop_sequence"]) == expected


async def test_a_whole_message_has_its_blocks_in_the_order_in_which_they_were_written() -> None:
    parts = [
        *(part_pb2.Part(content="A"), call('{"a": ', "look"), call("1}"), part_pb2.Part(content="then")),
        *(part_pb2.Part(reasoning="Hm"), part_pb2.Part(content="done"), call('{"a": "', "cut", index=1)),
    ]
    stopped = ended(output_pb2.FINISH_REASON_STOP, completion=1)
    async with running() as gateway:
        gateway.processor.plays(play(admitted(), started(), delta(0, [7], "a", parts=parts), stopped))
        reply = await gateway.ask("POST", "/v1/messages", CHAT)
    message = json.loads(reply.body)
    assert [tuple(block.values())[:2] for block in message["content"]] == [
        ("text", "A"),
        ("tool_use", "id-look"),
        ("text", "then"),
        ("thinking", "Hm"),
        ("text", "done"),
    ]
    assert message["content"][1]["input"] == {"a": 1}
    assert message["stop_reason"] == "tool_use"
