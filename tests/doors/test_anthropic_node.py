"""The @anthropic-ai/sdk package of Node."""

from __future__ import annotations

import json

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_node
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door, native: Client) -> Shown:
    return run_node("anthropic", "anthropic", door.url, native.models()[0].name)


def test_messages(shown: Shown, answer: Generation) -> None:
    message = shown("messages")
    assert [block["text"] for block in message["content"]] == [answer.content]
    assert message["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_stream(shown: Shown, answer: Generation) -> None:
    streamed = shown("stream")
    assert streamed["text"] == answer.content
    assert streamed["final"]["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_tools_round_trip(shown: Shown, native: Client) -> None:
    trip = shown("tools_round_trip")
    asked = {"temperature": 0.0, "max_tokens": ASKED["max_tokens"], "tools": [ASKED["tool"]]}
    first = native.generate(messages=ASKED["messages"], tool_choice="required", **asked)
    (call,) = first.tool_calls
    assert (trip["reason"], trip["name"], trip["input"]) == ("tool_use", "add", json.loads(call.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    second = native.generate(messages=[*ASKED["messages"], first.choices[0].message(), result], **asked)
    assert trip["second"] == second.content


def test_count_tokens(shown: Shown, native: Client) -> None:
    assert shown("count_tokens")["input_tokens"] == len(native.tokenize(messages=ASKED["messages"]).token_ids)


def test_errors(shown: Shown) -> None:
    assert {name: (error["kind"], error["status"], error["type"]) for name, error in shown("errors").items()} == {
        "temperature": ("BadRequestError", 400, "invalid_request_error"),
        "model": ("NotFoundError", 404, "not_found_error"),
        "messages": ("BadRequestError", 400, "invalid_request_error"),
    }
