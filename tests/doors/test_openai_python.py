"""The openai package of Python."""

from __future__ import annotations

import json
import math

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors
TOOLS = [ASKED["tool"]]


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_python("openai", "openai_python", door.api, door.engine_metrics)


def test_models(shown: Shown, native: Client) -> None:
    (model,) = native.models()
    assert shown("models") == [model.name, model.name]


def test_chat(shown: Shown, answer: Generation) -> None:
    chat = shown("chat")
    (choice,) = chat["choices"]
    assert choice["message"]["content"] == answer.content
    assert choice["finish_reason"] == answer.finish_reason
    assert chat["usage"]["prompt_tokens"] == answer.usage.prompt_tokens
    assert chat["usage"]["completion_tokens"] == answer.usage.completion_tokens


def test_chat_stream(shown: Shown, answer: Generation) -> None:
    *chunks, last = shown("chat_stream")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta["content"] or "" for delta in deltas) == answer.content
    assert [delta["role"] for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == answer.finish_reason
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == answer.usage.completion_tokens


def test_chat_stream_helper(shown: Shown, answer: Generation) -> None:
    helped = shown("chat_stream_helper")
    assert helped["content"] == answer.content
    assert {"chunk", "content.delta", "content.done"} <= set(helped["kinds"])


def test_chat_logprobs(shown: Shown, answer: Generation, native: Client) -> None:
    tokens = shown("chat_logprobs")["content"]
    text = b"".join(bytes(token["bytes"]) for token in tokens).decode()
    assert text == native.detokenize(answer.token_ids, skip_special_tokens=False)
    assert answer.logprobs is not None
    assert len(tokens) == len(answer.logprobs)
    for token, native in zip(tokens, answer.logprobs, strict=True):
        assert math.isclose(token["logprob"], native.logprob, abs_tol=1e-5)
        expected = [logprob for _, logprob in native.top]
        assert [top["logprob"] for top in token["top_logprobs"]] == pytest.approx(expected, abs=1e-5)


def test_chat_choices(shown: Shown, native: Client) -> None:
    asked = {"messages": ASKED["messages"], "temperature": 1.0, "seed": 7, "n": 3, "parse": True}
    generation = native.generate(**asked, max_tokens=ASKED["max_tokens"])
    assert shown("chat_choices") == [choice.content for choice in generation.choices]


def test_chat_vllm_fields(shown: Shown, native: Client) -> None:
    fields = shown("chat_vllm_fields")
    assert fields["usage"]["completion_tokens"] == ASKED["max_tokens"]
    assert fields["choices"][0]["finish_reason"] == "length"
    asked = {"messages": ASKED["messages"], "temperature": 0.0, "ignore_eos": True, "parse": True}
    assert (
        fields["choices"][0]["message"]["content"] == native.generate(**asked, max_tokens=ASKED["max_tokens"]).content
    )


def test_tools_round_trip(shown: Shown, native: Client) -> None:
    trip = shown("tools_round_trip")
    (choice,) = trip["first"]["choices"]
    asked = {"temperature": 0.0, "max_tokens": ASKED["max_tokens"], "tools": TOOLS}
    first = native.generate(messages=ASKED["messages"], tool_choice="required", **asked)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": first.tool_calls[0].arguments}
    assert set(trip["arguments"]) == {"a", "b"}
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "7"}
    second = native.generate(messages=[*ASKED["messages"], first.choices[0].message(), result], **asked)
    assert trip["second"] == second.content


def test_tools_named_streamed(shown: Shown, native: Client) -> None:
    choices = [choice for chunk in shown("tools_named_streamed") for choice in chunk["choices"]]
    pieces = [piece for choice in choices for piece in choice["delta"]["tool_calls"] or ()]
    asked = {"temperature": 0.0, "max_tokens": ASKED["max_tokens"], "tools": TOOLS, "tool_choice": "add"}
    (expected,) = native.generate(messages=ASKED["messages"], **asked).tool_calls
    assert [piece["function"]["name"] for piece in pieces if piece["function"]["name"]] == ["add"]
    assert pieces[0]["id"]
    assert pieces[0]["function"]["name"] == "add"
    assert "".join(piece["function"]["arguments"] or "" for piece in pieces) == expected.arguments
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_json_schema(shown: Shown) -> None:
    fruit = shown("json_schema")
    assert json.loads(fruit["text"]) == fruit["parsed"]


def test_json_object(shown: Shown, native: Client) -> None:
    asked = {"messages": ASKED["messages"], "temperature": 0.0, "max_tokens": 64, "json_object": True}
    assert shown("json_object") == native.generate(**asked, parse=True).content


def test_completions(shown: Shown, native: Client) -> None:
    completion = shown("completions")
    (choice,) = completion["choices"]
    generation = native.generate(ASKED["prompt"], temperature=0.0, max_tokens=12, logprobs=2)
    assert choice["text"] == generation.text
    assert completion["usage"]["completion_tokens"] == generation.usage.completion_tokens
    expected = [token.logprob for token in generation.logprobs or ()]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-5)


def test_completions_stream(shown: Shown, native: Client) -> None:
    expected = [native.generate(p, temperature=0.0, max_tokens=12).text for p in (ASKED["prompt"], "The end")]
    assert shown("completions_stream") == expected


def test_completions_echo(shown: Shown, native: Client) -> None:
    echoed = shown("completions_echo")
    generation = native.generate(ASKED["prompt"], temperature=0.0, max_tokens=1, prompt_logprobs=1, logprobs=1)
    assert echoed["text"] == ASKED["prompt"] + generation.text
    first, *others = echoed["logprobs"]["token_logprobs"]
    assert first is None
    assert len(others) == generation.usage.prompt_tokens


def test_responses(shown: Shown, answer: Generation) -> None:
    response = shown("responses")
    assert response["text"] == response["streamed"] == answer.content
    assert response["usage"]["input_tokens"] == answer.usage.prompt_tokens
    assert response["usage"]["output_tokens"] == answer.usage.completion_tokens
    assert response["kinds"][0] == "response.created"
    ended = {"stop": ("completed", None), "length": ("incomplete", "max_output_tokens")}[answer.finish_reason or ""]
    assert (response["status"], response["reason"]) == ended
    assert response["kinds"][-1] == f"response.{ended[0]}"


def test_responses_tools(shown: Shown, native: Client) -> None:
    trip = shown("responses_tools")
    assert trip["name"] == "add"
    assert set(trip["arguments"]) == {"a", "b"}
    assert trip["second"]


def test_responses_parsed(shown: Shown) -> None:
    assert set(shown("responses_parsed")) == {"unit", "count"}


def test_disconnect(shown: Shown) -> None:
    """What was computed after the client went away is a few steps, not the 1,500 tokens of the answer."""
    assert 3 <= shown("disconnect") < 750
