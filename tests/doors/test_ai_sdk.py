"""The AI SDK of Node (the package ai) with @ai-sdk/openai-compatible."""

from __future__ import annotations

import pytest
from ringline import Generation

from tests.doors.clients import Shown, run_node
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_node("ai-sdk", "ai-sdk", door.api)


def test_chat(shown: Shown, answer: Generation) -> None:
    chat = shown("chat")
    assert (chat["text"], chat["reason"]) == (answer.content, answer.finish_reason)
    assert chat["usage"]["inputTokens"] == answer.usage.prompt_tokens
    assert chat["usage"]["outputTokens"] == answer.usage.completion_tokens


def test_stream(shown: Shown, answer: Generation) -> None:
    streamed = shown("stream")
    assert (streamed["text"], streamed["reason"]) == (answer.content, answer.finish_reason)
    assert streamed["usage"]["outputTokens"] == answer.usage.completion_tokens


def test_tools_round_trip(shown: Shown) -> None:
    trip = shown("tools_round_trip")
    assert trip["name"] == "add"
    assert trip["output"] == trip["input"]["a"] + trip["input"]["b"]
    assert trip["text"]


def test_tools_streamed(shown: Shown) -> None:
    (call,) = shown("tools_streamed")
    assert set(call) == {"a", "b"}


def test_json_schema(shown: Shown) -> None:
    assert set(shown("json_schema")) == {"unit", "count"}


def test_errors(shown: Shown) -> None:
    error = shown("errors")
    assert (error["kind"], error["status"]) == ("AI_APICallError", 404)
    assert "'unknown'" in error["message"]
