"""Requests for messages: what becomes of blocks, tools and options, and what is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.gateway.anthropic.request import MessageRequest, all_options, messages_of
from services.gateway.fields import checked
from services.gateway.http.api_error import ApiError

HELLO = [{"role": "user", "content": "Hello"}]
BLOCK = {"type": "text", "text": "two"}
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def request_of(**fields: Any) -> MessageRequest:
    return checked(msgspec.convert({"max_tokens": 9, "messages": HELLO} | fields, MessageRequest))


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def test_blocks_of_every_kind() -> None:
    system = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be kind."}]
    messages = [
        *user({"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}}),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "So", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "see", "input": {}},
            ],
        },
        *user(
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}, BLOCK]},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A book"}},
        ),
        {"role": "system", "content": "It is Monday."},
    ]
    assert messages_of(request_of(system=system, messages=messages)) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Look"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "Hm\nSo",
            "tool_calls": [
                {"id": "t1", "name": "look", "arguments": {"a": 1}},
                {"id": "t2", "name": "see", "arguments": {}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error"},
        {"role": "user", "content": "A book"},
        {"role": "system", "content": "It is Monday."},
    ]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("Exit code 1\ngrep: x", "Error: Exit code 1\ngrep: x"),
        ([BLOCK], "Error: two"),
        ("<tool_use_error>no such file</tool_use_error>", "<tool_use_error>no such file</tool_use_error>"),
        ("Error: no such file", "Error: no such file"),
        ("x" * 80 + "error", "Error: " + "x" * 80 + "error"),
    ],
)
def test_a_result_that_is_an_error_says_so_once(content: object, shown: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    (message,) = messages_of(request_of(messages=user(result | {"is_error": True})))
    assert message["content"] == shown
    (message,) = messages_of(request_of(messages=user(result | {"is_error": False})))
    assert message["content"] == ("two" if content == [BLOCK] else content)


def test_a_conversation_goes_on_that_has_calls_of_anthropics_own_tools() -> None:
    said = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I search."},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "fox"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s1",
                "content": [
                    {"type": "web_search_result", "url": "http://fox", "title": "Foxes", "encrypted_content": "x"},
                    {"type": "web_search_result", "url": "http://den", "title": "Dens", "encrypted_content": "y"},
                ],
            },
            {"type": "server_tool_use", "id": "s2", "name": "code_execution", "input": {"code": "1"}},
            {
                "type": "code_execution_tool_result",
                "tool_use_id": "s2",
                "content": {"type": "code_execution_result", "stdout": "1", "return_code": 0},
            },
            {"type": "text", "text": "Found", "citations": []},
        ],
    }
    request = request_of(messages=[*HELLO, said])
    assert messages_of(request)[1:] == [
        {
            "role": "assistant",
            "content": "I search.",
            "tool_calls": [{"id": "s1", "name": "web_search", "arguments": {"query": "fox"}}],
        },
        {"role": "tool", "tool_call_id": "s1", "content": "Foxes\nhttp://fox\nDens\nhttp://den"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "s2", "name": "code_execution", "arguments": {"code": "1"}}],
        },
        {
            "role": "tool",
            "tool_call_id": "s2",
            "content": '{"type":"code_execution_result","stdout":"1","return_code":0}',
        },
        {"role": "assistant", "content": "Found"},
    ]
    assert all_options(request)["continue_final_message"]
    for count in (2, 3, 5):  # behind a call or a result there is nothing to continue
        cut = {"role": "assistant", "content": said["content"][:count]}
        assert "continue_final_message" not in all_options(request_of(messages=[*HELLO, cut]))


@pytest.mark.parametrize(
    ("role", "block", "problem"),
    [
        (
            "user",
            {"type": "document", "source": {"type": "base64", "data": "JVBERi0="}},
            "a block of type 'document' of source 'base64' is not supported: expected tool_result, image, text, "
            "search_result, or a document of plain text",
        ),
        (
            "assistant",
            {"type": "container_upload"},
            "a block of type 'container_upload' is not supported: expected thinking, tool_use, image, text, "
            "search_result, or a document of plain text",
        ),
    ],
)
def test_a_refused_block_says_what_is_expected_there(role: str, block: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiError) as refused:
        messages_of(request_of(messages=[{"role": role, "content": [block]}]))
    assert refused.value.message == f"messages[0].content[0].type: {problem}"


def test_documents_and_search_results_have_their_titles() -> None:
    text = {"type": "text", "media_type": "text/plain", "data": "Once"}
    chunks = {"type": "content", "content": [BLOCK, BLOCK]}
    blocks = [
        {"type": "document", "title": "A tale", "context": "For children", "source": text},
        {"type": "document", "source": chunks},
        {"type": "search_result", "source": "http://fox", "title": "Foxes", "content": [BLOCK]},
    ]
    (message,) = messages_of(request_of(messages=user(*blocks)))
    assert message["content"] == "A tale\nFor children\nOnce\ntwo\ntwo\nFoxes\nhttp://fox\ntwo"
    result = {"type": "tool_result", "tool_use_id": "t", "content": blocks[2:]}
    (message,) = messages_of(request_of(messages=user(result)))
    assert message["content"] == "Foxes\nhttp://fox\ntwo"


def test_a_reminder_is_shown_until_the_user_speaks_again() -> None:
    reminder = {"role": "system", "content": "Now", "clear_at": "next_user_message"}
    _, message = messages_of(request_of(messages=[*HELLO, reminder]))
    assert message == {"role": "system", "content": "Now"}
    (message,) = messages_of(request_of(messages=[*HELLO, reminder, *HELLO]))
    assert message["content"] == "Hello\nHello"


def test_options() -> None:
    options = all_options(
        request_of(
            model="m",
            stop_sequences=["END"],
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            tools=[LOOK, {"type": "web_search_20250305", "name": "web_search"}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            thinking={"type": "adaptive", "display": "omitted"},
            output_config={"effort": "max"},
            metadata={"user_id": "u"},
            context_management={"edits": []},
            never_heard_of=1,
        )
    )
    assert {name: value for name, value in options.items() if value is not None} == {
        "model": "m",
        "max_tokens": 9,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "tools": [
            {"name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": None},
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "template_args": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
        "parse": True,
    }


@pytest.mark.parametrize(
    ("choice", "expected", "parse"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "none", "disable_parallel_tool_use": True}, "none", {"tool_calls": "none"}),
        ({"type": "tool", "name": "look"}, {"type": "function", "name": "look"}, True),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: object, parse: object) -> None:
    options = all_options(request_of(tools=[LOOK], tool_choice=choice))
    assert (options["tool_choice"], options["parse"]) == (expected, parse)
    assert "parallel_tool_calls" not in options


def test_a_message_may_choose_the_formats_of_calls_and_of_reasoning() -> None:
    chosen = {"tool_call_parser": "hermes", "reasoning_parser": "think"}
    assert all_options(request_of(tools=[LOOK], **chosen))["parse"] == {"tool_calls": "hermes", "reasoning": "think"}
    assert all_options(request_of(**chosen))["parse"] == {"tool_calls": "none", "reasoning": "think"}


def test_without_tools_nothing_is_read_as_a_call() -> None:
    options = all_options(request_of(tool_choice={"type": "auto"}, thinking={"type": "disabled"}))
    assert options["parse"] == {"tool_calls": "none"}
    assert "tool_choice" not in options
    assert options["template_args"] == {"enable_thinking": False, "thinking": False}


def test_tools_that_come_and_go_in_the_conversation() -> None:
    def change(kind: str, name: str, **tool: Any) -> dict[str, Any]:
        return {"type": f"tool_{kind}", "tool": {"type": "tool_reference", "name": name} | tool}

    changes = [
        change("addition", "", type="tool_definition", definition=LOOK | {"name": "new"}),
        change("removal", "look"),
        change("removal", "see"),
        change("addition", "see"),
    ]
    tools = [LOOK, LOOK | {"name": "see"}]
    request = request_of(tools=tools, messages=[*HELLO, {"role": "system", "content": changes}])
    assert [tool["name"] for tool in all_options(request)["tools"] or ()] == ["see", "new"]  # type: ignore[call-overload, index]
    assert messages_of(request) == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("given", ['{"pet": "ca', [], "cat"])
def test_input_of_a_call_in_the_conversation_may_be_anything(given: object) -> None:
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": given}]}
    assert messages_of(request_of(messages=[*HELLO, called]))[1]["tool_calls"] == [
        {"id": "a", "name": "b", "arguments": given}
    ]


def test_a_last_turn_of_the_assistant_goes_on() -> None:
    assert all_options(request_of(messages=[*HELLO, {"role": "assistant", "content": "I"}]))["continue_final_message"]
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}
    for turn in (called, {"role": "assistant", "content": []}, *HELLO):
        assert "continue_final_message" not in all_options(request_of(messages=[*HELLO, turn]))


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_the_form_of_an_answer(field: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "integer"}}
    fields = {field: form if field == "output_format" else {"format": form}}
    assert all_options(request_of(**fields))["json_schema"] == {"type": "integer"}


def read(fields: dict[str, Any]) -> None:
    request = request_of(**fields)
    messages_of(request)
    all_options(request)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": user({"type": "image", "source": {"type": "url"}})}, "messages[0].content[0].source.url"),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]})},
            "messages[0].content[0].content[0].source",
        ),
        ({"messages": user({"type": "tool_result"})}, "messages[0].content[0].tool_use_id"),
        ({"messages": user({"type": "text"})}, "messages[0].content[0]"),
        ({"messages": user({"type": "search_result", "source": "a"})}, "messages[0].content[0]"),
        ({"messages": user({"type": "server_tool_use"})}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "sometimes"}, "tools": [LOOK]}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}, "tools": [LOOK]}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format"),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"mcp_servers": [{"name": "a"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(fields)
    assert (refused.value.status, refused.value.param) == (400, param)
