"""Requests for responses: what becomes of items, tools and options, and what is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import EasyInputMessage

from services.gateway.fields import checked
from services.gateway.http.api_error import ApiError
from services.gateway.openai.responses.endpoint import _name_of
from services.gateway.openai.responses.request import ResponseRequest, all_options, messages_of

LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}
RING_LOOK = {name: value for name, value in LOOK.items() if name != "type"}


def request_of(**fields: Any) -> ResponseRequest:
    return checked(msgspec.convert({"input": "Hello"} | fields, ResponseRequest))


def test_errors_of_the_conversation_name_the_input() -> None:
    assert _name_of("chat.messages[1].tool_calls[0].arguments_json") == "input"  # the ring numbers them otherwise
    assert _name_of("chat.tools[2].parameters_json") == "tools[2].parameters"
    assert _name_of("tools[2].name") == "tools[2].name"


def test_items_of_every_kind() -> None:
    items = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I do", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}', "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a wall"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So"}], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
        {"role": "system", "content": "It is Monday."},
    ]
    assert messages_of(request_of(instructions="Be kind.", input=items)) == [
        {"role": "system", "content": "Be kind.\nBe short."},
        {"role": "user", "content": "Look"},
        {
            "role": "assistant",
            "content": "I do",
            "reasoning": "Hm",
            "tool_calls": [{"id": "c1", "name": "look", "arguments": '{"a": 1}'}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a wall"},
        {"role": "assistant", "content": "No", "reasoning": "So"},
        {"role": "system", "content": "It is Monday."},
    ]


def test_a_conversation_goes_on_that_has_calls_of_other_kinds() -> None:
    items = [
        {"role": "user", "content": "Go"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "fox"}},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        {"type": "local_shell_call", "id": "l", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a b"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "note", "namespace": "mcp__n", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": [{"type": "input_text", "text": "Noted"}]},
    ]
    assert messages_of(request_of(input=items)) == [
        {"role": "user", "content": "Go"},
        called("c1", "apply_patch", {"input": "*** Begin"}),
        {"role": "tool", "tool_call_id": "c1", "content": "Done"},
        called("c2", "local_shell", {"type": "exec", "command": ["ls"]}),
        {"role": "tool", "tool_call_id": "c2", "content": "a b"},
        called("c3", "mcp__n__note", {"input": ""}),
        {"role": "tool", "tool_call_id": "c3", "content": "Noted"},
    ]


def called(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "name": name, "arguments": arguments}]}


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_input_is_an_empty_message(empty: object) -> None:
    """Clients try with one whether the endpoint is there."""
    assert messages_of(request_of(input=empty)) == [{"role": "user", "content": ""}]


def test_an_item_without_a_type_is_a_message() -> None:
    item = EasyInputMessage(role="user", content="Hi").model_dump()
    assert item["type"] is None
    assert messages_of(request_of(input=[item])) == [{"role": "user", "content": "Hi"}]


def test_an_empty_stop_is_none() -> None:
    assert "stop" not in all_options(request_of(stop=""))
    assert all_options(request_of(stop=["x"]))["stop"] == ["x"]


def test_options() -> None:
    request = request_of(
        model="m",
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=2,
        tools=[LOOK, {"type": "web_search"}, {"type": "custom", "name": "patch"}],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "text"}},
        include=["reasoning.encrypted_content"],
        store=True,
        client_metadata={},
        background=False,
    )
    assert all_options(request) == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "logprobs": 2,
        "tools": [RING_LOOK],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "template_args": {"reasoning_effort": "low", "enable_thinking": True, "verbosity": "low"},
        "parse": {"content_tokens": True},
    }


def test_options_of_a_plain_request() -> None:
    assert all_options(request_of(tool_choice="auto", include=["message.output_text.logprobs"])) == {
        "parse": {"tool_calls": "none", "content_tokens": True},
        "logprobs": 0,
    }


def test_allowed_tools_leave_out_the_others() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    options = all_options(request_of(tools=[LOOK | {"name": "other"}, LOOK], tool_choice=choice))
    assert (options["tools"], options["tool_choice"]) == ([RING_LOOK], "required")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "name": "n", "schema": {"type": "integer"}}, {"json_schema": {"type": "integer"}}),
    ],
)
def test_the_form_of_an_answer(form: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= all_options(request_of(text={"format": form})).items()


def read(fields: dict[str, Any]) -> None:
    request = request_of(**fields)
    messages_of(request)
    all_options(request)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"type": "computer_call_output", "output": {"type": "x"}}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call"}]}, "input[0]"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c"}]}, "input[0]"),
        ({"input": [{"type": "local_shell_call", "action": {}}]}, "input[0]"),
        ({"input": [{"type": "custom_tool_call_output", "id": "c"}]}, "input[0]"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]}, "input[0]"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}, "tools": [LOOK]}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [LOOK]}, "tool_choice.tools"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_functions_in_namespaces_and_items() -> None:
    pets = {
        "type": "namespace",
        "name": "mcp__pets__",
        "description": "Pets.",
        "tools": [{**LOOK, "name": "feed"}, {"type": "custom", "name": "x"}, {"type": "function", "name": "pat"}],
    }
    more = {"type": "namespace", "name": "crm", "tools": [LOOK]}
    request = request_of(
        tools=[pets, {"type": "function", "name": "feed"}],
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [more]},
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c", "namespace": "crm", "name": "look", "arguments": "{}"},
            {"type": "additional_tools", "role": "developer", "tools": [{**more, "description": "Customers."}]},
        ],
    )
    options = all_options(request)
    assert options["tools"] == [
        {**RING_LOOK, "name": "mcp__pets__feed", "description": "Pets.\n\nLooks."},
        {"name": "mcp__pets__pat"},
        {"name": "feed"},
        {**RING_LOOK, "name": "crm__look", "description": "Customers.\n\nLooks."},
    ]
    calls = [{"id": "c", "name": "crm__look", "arguments": "{}"}]
    assert messages_of(request)[1] == {"role": "assistant", "content": "", "tool_calls": calls}
    for choice, name in (
        ({"name": "feed"}, "feed"),
        ({"name": "feed", "namespace": "mcp__pets__"}, "mcp__pets__feed"),
        ({"name": "mcp__pets__pat"}, "mcp__pets__pat"),
        ({"name": "look"}, "crm__look"),
        ({"name": "none"}, "none"),
    ):
        request.tool_choice = {"type": "function", **choice}
        assert all_options(request)["tool_choice"] == {"type": "function", "name": name}
    request.tool_choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "crm"}]}
    assert [tool["name"] for tool in all_options(request)["tools"]] == ["crm__look"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "namespace", "tools": []}], "tools[0]"),
        ([{"type": "namespace", "name": "n", "tools": [1]}], "tools[0].tools[0]"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
    ],
)
def test_a_namespace_that_cannot_be_read(tools: list[object], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        all_options(request_of(tools=tools))
    assert refused.value.param == param


def test_a_name_in_several_namespaces_is_not_guessed() -> None:
    spaces = [{"type": "namespace", "name": name, "tools": [LOOK]} for name in "ab"]
    with pytest.raises(ApiError, match="is in several namespaces: expected one of 'a__look', 'b__look'"):
        all_options(request_of(tools=spaces, tool_choice={"type": "function", "name": "look"}))
    spaces = [{"type": "namespace", "name": name * 7000, "tools": [LOOK]} for name in "abcdefgh"]
    with pytest.raises(ApiError) as refused:
        all_options(request_of(tools=spaces, tool_choice={"type": "function", "name": "look"}))
    assert len(refused.value.message) < 1000


def test_a_reference_to_an_item_says_how_to_send_the_item_itself() -> None:
    with pytest.raises(ApiError, match="nothing is stored: expected the item itself") as refused:
        messages_of(request_of(input=[{"type": "item_reference", "id": "msg_1"}]))
    assert (refused.value.param, refused.value.code) == ("input[0].type", "unsupported_parameter")
