"""The anthropic package of Python."""

from __future__ import annotations

import json

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors
REASONS = {"stop": "end_turn", "length": "max_tokens"}


@pytest.fixture(scope="module")
def program(door: Door, native: Client) -> Shown:
    return run_python("anthropic", "anthropic_python", door.url, native.models()[0].name, door.engine_metrics)


def test_messages(shown: Shown, answer: Generation) -> None:
    message = shown("messages")
    assert [(block["type"], block["text"]) for block in message["content"]] == [("text", answer.content)]
    assert (message["type"], message["role"]) == ("message", "assistant")
    assert message["stop_reason"] == REASONS[answer.finish_reason or ""]
    assert message["usage"]["output_tokens"] == answer.usage.completion_tokens
    cached = message["usage"]["cache_read_input_tokens"] or 0
    assert message["usage"]["input_tokens"] + cached == answer.usage.prompt_tokens


def test_stream(shown: Shown, answer: Generation) -> None:
    streamed = shown("stream")
    assert streamed["text"] == answer.content
    assert streamed["final"]["stop_reason"] == REASONS[answer.finish_reason or ""]
    assert streamed["final"]["usage"]["output_tokens"] == answer.usage.completion_tokens
    assert streamed["kinds"][0] == "message_start"
    assert streamed["kinds"][-1] == "message_stop"


def test_raw_stream(shown: Shown, answer: Generation) -> None:
    events = shown("raw_stream")
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == answer.content


def test_system_and_stop(shown: Shown, native: Client) -> None:
    stopped = shown("system_and_stop")
    messages = [{"role": "system", "content": "Be short."}, *ASKED["messages"]]
    asked = {"messages": messages, "temperature": 0.0, "max_tokens": ASKED["max_tokens"], "stop": ["7"], "parse": True}
    expected = native.generate(**asked)
    assert stopped["text"] == expected.content
    if expected.stop == "7":
        assert (stopped["reason"], stopped["at"]) == ("stop_sequence", "7")


def test_tools_round_trip(shown: Shown, native: Client) -> None:
    trip = shown("tools_round_trip")
    asked = {"temperature": 0.0, "max_tokens": ASKED["max_tokens"], "tools": [ASKED["tool"]]}
    first = native.generate(messages=ASKED["messages"], tool_choice="required", **asked)
    (call,) = first.tool_calls
    assert (trip["reason"], trip["name"]) == ("tool_use", "add")
    assert trip["input"] == json.loads(call.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    second = native.generate(messages=[*ASKED["messages"], first.choices[0].message(), result], **asked)
    assert trip["second"] == second.content


def test_tools_streamed(shown: Shown) -> None:
    streamed = shown("tools_streamed")
    assert json.loads("".join(streamed["pieces"])) == streamed["input"]
    assert streamed["reason"] == "tool_use"


def test_count_tokens(shown: Shown, native: Client) -> None:
    counted = shown("count_tokens")
    assert counted["plain"] == len(native.tokenize(messages=ASKED["messages"]).token_ids)
    assert counted["tools"] == len(native.tokenize(messages=ASKED["messages"], tools=[ASKED["tool"]]).token_ids)


def test_refusals(shown: Shown) -> None:
    refused = shown("refusals")
    assert {what: (one["kind"], one["status"], one["body"]["error"]["type"]) for what, one in refused.items()} == {
        "temperature": ("BadRequestError", 400, "invalid_request_error"),
        "unknown model": ("NotFoundError", 404, "not_found_error"),
        "no messages": ("BadRequestError", 400, "invalid_request_error"),
        "streamed": ("NotFoundError", 404, "not_found_error"),
        "too long": ("BadRequestError", 400, "invalid_request_error"),
    }
    for one in refused.values():
        assert one["body"]["type"] == "error"
        assert one["id"]


def test_disconnect(shown: Shown) -> None:
    """What was computed after the client went away is a few steps, not the hundreds of tokens of the answer."""
    assert 1 <= shown("disconnect") < 750
