"""Anthropic's form of errors."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from services.gateway.anthropic.errors import ANTHROPIC
from services.gateway.http.api_error import ApiError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def test_types() -> None:
    for status, kind in TYPES.items():
        told = json.loads(ANTHROPIC.error(ApiError(HTTPStatus(status), "it is so"), "r1"))
        assert told == {"type": "error", "error": {"type": kind, "message": "it is so"}, "request_id": "r1"}


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (
            "prompt: 3000 tokens are too long: expected at most 2047 (truncate_prompt_tokens keeps the last ones)",
            "3000 tokens > 2047 maximum",
        ),
        (
            "messages: more than 81920 bytes: expected at most 81920, for a context of 2048 tokens. This is all",
            "more than 81920 bytes: expected at most 81920, for a context of 2048 tokens",
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_wait_for(problem: str, words: str) -> None:
    body = json.loads(ANTHROPIC.error(ApiError(HTTPStatus.BAD_REQUEST, problem), "r1"))
    assert body["error"]["message"] == f"prompt is too long: {words}"


def test_names_of_fields() -> None:
    assert ANTHROPIC.name_of("chat.messages[1].role") == "messages"  # the ring numbers them otherwise
    assert ANTHROPIC.name_of("stopping.stop") == "stop_sequences"
    assert ANTHROPIC.name_of("constraint.json_schema") == "output_config.format.schema"
    assert ANTHROPIC.name_of("chat.tools[2].parameters_json") == "tools[2].input_schema"
    assert ANTHROPIC.name_of("chat.tools[2].name") == "tools[2].name"
    assert ANTHROPIC.name_of("output.parse.tool_calls") == "tool_call_parser"
