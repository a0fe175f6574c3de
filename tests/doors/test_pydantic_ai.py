"""pydantic-ai: OpenAI's chats and responses and Anthropic's messages, which all come to the same."""

from __future__ import annotations

import json

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_python("pydantic-ai", "pydantic_ai_python", door.url)


APIS = ("chat", "responses", "messages")


def test_run(shown: Shown, answer: Generation) -> None:
    expected = {"text": answer.content, "tokens": answer.usage.completion_tokens}
    assert shown("run") == dict.fromkeys(APIS, expected)


def test_stream(shown: Shown, answer: Generation) -> None:
    assert "".join(shown("stream")) == answer.content


def test_structured(shown: Shown) -> None:
    """By JSON schema, and by the call of a tool: pydantic accepted both."""
    assert {form: set(fruit) for form, fruit in shown("structured").items()} == {
        "native": {"unit", "count"},
        "tool": {"unit", "count"},
    }


def test_tool_round_trip(shown: Shown, native: Client) -> None:
    asked = {"temperature": 0.0, "max_tokens": ASKED["max_tokens"], "tools": [ASKED["tool"]]}
    first = native.generate(messages=ASKED["messages"], tool_choice="required", **asked)
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "7"}
    second = native.generate(messages=[*ASKED["messages"], first.choices[0].message(), result], **asked)
    expected = {"arguments": json.loads(first.tool_calls[0].arguments), "second": second.content}
    assert shown("tool_round_trip") == dict.fromkeys(APIS, expected)
