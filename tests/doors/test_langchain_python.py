"""langchain-openai."""

from __future__ import annotations

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_python("langchain", "langchain_python", door.api)


def test_chat(shown: Shown, answer: Generation) -> None:
    chat = shown("chat")
    assert (chat["text"], chat["reason"]) == (answer.content, answer.finish_reason)
    assert chat["usage"]["input_tokens"] == answer.usage.prompt_tokens
    assert chat["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_stream(shown: Shown, answer: Generation) -> None:
    streamed = shown("stream")
    assert streamed["text"] == answer.content
    assert streamed["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_together(shown: Shown, answer: Generation) -> None:
    assert shown("together") == [answer.content] * 4


def test_tools_round_trip(shown: Shown) -> None:
    trip = shown("tools_round_trip")
    assert (trip["name"], set(trip["arguments"])) == ("add", {"a", "b"})
    assert trip["second"]


def test_structured(shown: Shown) -> None:
    """By JSON schema, and by the call of a tool: the SDK parsed both."""
    assert [set(fruit) for fruit in shown("structured")] == [{"unit", "count"}] * 2


def test_completion(shown: Shown, native: Client) -> None:
    assert shown("completion") == native.generate(ASKED["prompt"], temperature=0.0, max_tokens=12).text


def test_responses(shown: Shown, answer: Generation) -> None:
    assert shown("responses") == answer.content
