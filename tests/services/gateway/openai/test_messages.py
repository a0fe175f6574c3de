"""OpenAI's messages and tools as the ring's."""

from typing import Any

import msgspec
import pytest

from services.gateway.http.api_error import ApiError
from services.gateway.openai.messages import ChatMessage, Tool, ring_messages, tool_options

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOLS = msgspec.convert(
    [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": None}}], list[Tool]
)


def ring(*messages: dict[str, Any]) -> list[Any]:
    return ring_messages(msgspec.convert(messages, list[ChatMessage]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "developer", "content": "Be kind."}, {"role": "system", "content": "Be kind."}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache": 1}]},
            {"role": "user", "content": "ab"},
        ),
        ({"role": "user", "content": "a", "name": "Ada"}, {"role": "user", "content": "a", "name": "Ada"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "why"},
            {"role": "assistant", "content": "a", "reasoning": "why"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "why"},
            {"role": "assistant", "content": "a", "reasoning": "why"},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL], "refusal": None, "annotations": []},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 1}'}],
            },
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "5"},
        ),
        ({"role": "assistant", "refusal": "No."}, {"role": "assistant", "content": "No."}),
    ],
)
def test_messages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert ring(given) == [expected]


@pytest.mark.parametrize(
    ("given", "expected"), [("", "{}"), (None, "{}"), ('{"a": "b', '{"a": "b'), ([1], [1]), ({"a": 1}, {"a": 1})]
)
def test_a_call_of_the_conversation_has_the_arguments_that_it_had(given: object, expected: object) -> None:
    (message,) = ring(
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "go", "arguments": given}}]}
    )
    assert message["tool_calls"][0]["arguments"] == expected


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "user", "content": "What is this?", "images": ["iVBORw0KGgo="]}, "messages[0].images"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, "messages[0].function_call"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_what_no_template_can_show_is_refused_by_its_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ring(message)
    assert refusal.value.param == param


@pytest.mark.parametrize("messages", [None, []])
def test_a_chat_has_messages(messages: Any) -> None:
    with pytest.raises(ApiError) as refusal:
        ring_messages(messages)
    assert refusal.value.param == "messages"


def test_answers_are_always_divided_and_calls_found_where_there_are_tools() -> None:
    assert tool_options(None, None, None) == {"parse": {"tool_calls": "none"}}
    assert tool_options([], "auto", True) == {"parse": {"tool_calls": "none"}}
    function = {"name": "add", "parameters": {"type": "object"}}
    assert tool_options(TOOLS, None, None) == {"tools": [function], "parse": True}
    assert tool_options(TOOLS, "none", False) == {
        "tools": [function],
        "tool_choice": "none",
        "parse": {"tool_calls": "none"},
    }
    assert tool_options(TOOLS, {"type": "function", "function": {"name": "add"}}, False) == {
        "tools": [function],
        "tool_choice": {"type": "function", "name": "add"},  # "auto" alone would be a mode
        "parallel_tool_calls": False,
        "parse": True,
    }


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        (None, "required", "tool_choice"),
        (TOOLS, "any", "tool_choice"),
        (TOOLS, {"type": "function"}, "tool_choice.function.name"),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": {}}, "tool_choice.type"),
        ([Tool(type="custom")], None, "tools[0].type"),
        ([Tool()], None, "tools[0].function"),
    ],
)
def test_tools_that_cannot_be_used_are_refused(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        tool_options(tools, choice, None)
    assert refusal.value.param == param
