"""The formats that a request chooses have the names that the engine's flags take, vLLM's among them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.anthropic.messages import MESSAGES
from services.gateway.generation import GenerationEndpoint
from services.gateway.http.api_error import ApiError
from services.gateway.openai.chat import CHAT

PLAIN: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
WITH_TOOLS = [
    (CHAT, PLAIN | {"tools": [{"type": "function", "function": {"name": "look"}}]}),
    (MESSAGES, PLAIN | {"tools": [{"name": "look", "input_schema": {}}]}),
]
TOOLS = pytest.mark.parametrize(("endpoint", "body"), WITH_TOOLS, ids=["chat", "message"])


def parse_of(endpoint: GenerationEndpoint[Any], body: dict[str, Any]) -> Any:
    _, (ask,) = endpoint._read(json.dumps(body).encode())
    return ask.options["parse"]


@TOOLS
@pytest.mark.parametrize(
    ("calls", "reasoning", "expected"),
    [
        ("hermes", "think", {"tool_calls": "hermes", "reasoning": "think"}),
        ("llama4_pythonic", "deepseek_r1", {"tool_calls": "pythonic", "reasoning": "think"}),
        ("none", "identity", {"tool_calls": "none", "reasoning": "none"}),
        ("openai", "auto", {"tool_calls": "harmony"}),
        ("jamba", "granite", True),  # which are the model's own
    ],
)
def test_a_format_is_named_as_for_the_engine(
    endpoint: GenerationEndpoint[Any], body: dict[str, Any], calls: str, reasoning: str, expected: object
) -> None:
    parse = parse_of(endpoint, body | {"tool_call_parser": calls, "reasoning_parser": reasoning})
    assert (parse or True) == expected


@TOOLS
@pytest.mark.parametrize("field", ["tool_call_parser", "reasoning_parser"])
@pytest.mark.parametrize("has_tools", [True, False])
def test_an_unknown_format_is_refused_with_and_without_tools(
    endpoint: GenerationEndpoint[Any], body: dict[str, Any], field: str, has_tools: bool
) -> None:
    given = (body if has_tools else PLAIN) | {field: "nope"}
    with pytest.raises(ApiError) as refused:
        parse_of(endpoint, given)
    assert refused.value.message.startswith(f"{field}: 'nope' is not known: expected one of auto, none, ")
    assert (refused.value.status, refused.value.param) == (400, field)
