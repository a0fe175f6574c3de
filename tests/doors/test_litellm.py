"""litellm, as a library: the address is one of vLLM's kind, of OpenAI's and of Anthropic's."""

from __future__ import annotations

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_python("litellm", "litellm_python", door.url)


def test_chat(shown: Shown, answer: Generation) -> None:
    (choice,) = shown("chat")["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (answer.content, answer.finish_reason)


def test_chat_as_openai(shown: Shown, answer: Generation) -> None:
    assert shown("chat_as_openai") == answer.content


def test_chat_as_anthropic(shown: Shown, answer: Generation) -> None:
    assert shown("chat_as_anthropic") == answer.content


def test_stream(shown: Shown, answer: Generation) -> None:
    streamed = shown("stream")
    assert streamed["text"] == answer.content
    assert streamed["usage"]["prompt_tokens"] == answer.usage.prompt_tokens
    assert streamed["usage"]["completion_tokens"] == answer.usage.completion_tokens


def test_tools_round_trip(shown: Shown) -> None:
    trip = shown("tools_round_trip")
    assert (trip["reason"], set(trip["arguments"])) == ("tool_calls", {"a", "b"})
    assert trip["second"]


def test_json_schema(shown: Shown) -> None:
    assert set(shown("json_schema")) == {"unit", "count"}


def test_completion(shown: Shown, native: Client) -> None:
    assert shown("completion") == native.generate(ASKED["prompt"], temperature=0.0, max_tokens=12).text


def test_errors(shown: Shown) -> None:
    assert shown("errors") == {"model": "NotFoundError", "temperature": "BadRequestError"}
