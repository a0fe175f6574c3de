"""@langchain/openai."""

from __future__ import annotations

import pytest
from ringline import Generation

from tests.doors.clients import Shown, run_node
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_node("langchain", "langchain", door.api)


def test_chat(shown: Shown, answer: Generation) -> None:
    chat = shown("chat")
    assert chat["text"] == answer.content
    assert chat["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_stream(shown: Shown, answer: Generation) -> None:
    streamed = shown("stream")
    assert streamed["text"] == answer.content
    assert streamed["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_tools_round_trip(shown: Shown) -> None:
    trip = shown("tools_round_trip")
    assert (trip["name"], set(trip["arguments"])) == ("add", {"a", "b"})
    assert trip["second"]


def test_structured(shown: Shown) -> None:
    assert set(shown("structured")) == {"unit", "count"}
