"""Chats through OpenAI's client: what the native client has, in OpenAI's form."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import openai
import pytest
from ringline import Client

from services.gateway.fields import checked
from services.gateway.openai.chat import CHAT as ENDPOINT
from services.gateway.openai.chat import ChatRequest
from tests.services.gateway.conftest import Post

MODEL = "tiny"
CHAT: Any = [{"role": "user", "content": "Who was the fox?"}]
SAMPLED: Any = {"model": MODEL, "messages": CHAT, "seed": 7, "max_tokens": 12}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
    },
}


def native_answer(native: Client, **options: Any) -> Any:
    given = {"seed": 7, "max_tokens": 12, "parse": {"tool_calls": "none"}, **options}
    return native.generate(messages=CHAT, **given)


def test_an_answer(door: openai.OpenAI, native: Client) -> None:
    expected = native_answer(native)
    answer = door.chat.completions.create(**SAMPLED, extra_headers={"x-request-id": "mine"})
    (choice,) = answer.choices
    assert (answer.id, answer.object, answer.model) == ("chatcmpl-mine", "chat.completion", MODEL)
    assert (choice.message.role, choice.message.content) == ("assistant", expected.content)
    assert (choice.finish_reason, choice.logprobs) == (expected.finish_reason, None)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens == 12
    assert answer.usage.total_tokens == expected.usage.prompt_tokens + 12


def test_a_stream_has_the_role_with_the_first_token_and_the_usage_last(door: openai.OpenAI, native: Client) -> None:
    expected = native_answer(native, n=2)
    *chunks, last = door.chat.completions.create(**SAMPLED, n=2, stream=True, stream_options={"include_usage": True})
    for index in (0, 1):
        of_choice = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(one.delta.content or "" for one in of_choice) == expected.choices[index].content
        assert [one.delta.role for one in of_choice] == ["assistant"] + [None] * (len(of_choice) - 1)
        assert of_choice[0].delta.content
        assert [one.finish_reason for one in of_choice[:-1]] == [None] * (len(of_choice) - 1)
        assert of_choice[-1].finish_reason == expected.choices[index].finish_reason
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens is not None
    assert last.usage.completion_tokens == expected.usage.completion_tokens
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


def test_the_stream_as_it_is_written(post: Post) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**SAMPLED, "max_tokens": 3, "stream": True, "stream_options": options, "return_token_ids": True}
    answer = post("/v1/chat/completions", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"]
    *events, done = (event.removeprefix("data: ") for event in answer.text.removesuffix("\n\n").split("\n\n"))
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    tokens = [len(chunk["choices"][0].get("token_ids", ())) if chunk["choices"] else 0 for chunk in chunks]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == list(itertools.accumulate(tokens))
    assert sum(tokens) == 3
    assert ["prompt_token_ids" in chunk for chunk in chunks] == [True] + [False] * (len(chunks) - 1)


def test_log_probabilities_name_tokens_by_text_and_bytes(door: openai.OpenAI, native: Client) -> None:
    expected = native_answer(native, logprobs=2).choices[0]
    texts = [native.detokenize([token_id], skip_special_tokens=False) for token_id in expected.token_ids]
    whole = door.chat.completions.create(**SAMPLED, logprobs=True, top_logprobs=2).choices[0].logprobs
    streamed = door.chat.completions.create(**SAMPLED, logprobs=True, top_logprobs=2, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in streamed]
    assert whole is not None
    assert whole.content == [one for logprobs in chunks if logprobs for one in logprobs.content or ()]
    assert whole.content is not None
    assert [one.token for one in whole.content] == texts
    assert [bytes(one.bytes or ()) for one in whole.content] == [text.encode() for text in texts]
    assert [one.logprob for one in whole.content] == [one.logprob for one in expected.logprobs]
    tops = [[alternative.logprob for alternative in one.top_logprobs] for one in whole.content]
    assert tops == [[logprob for _, logprob in one.top] for one in expected.logprobs]


def test_log_probabilities_of_the_prompt(door: openai.OpenAI, native: Client) -> None:
    expected = native_answer(native, prompt_logprobs=1, return_prompt_token_ids=True)
    answer = door.chat.completions.create(**SAMPLED, extra_body={"prompt_logprobs": 1, "return_token_ids": True})
    told = answer.model_extra or {}
    assert told["prompt_token_ids"] == list(expected.request.prompt_token_ids)
    assert (answer.choices[0].model_extra or {})["token_ids"] == list(expected.token_ids)
    assert told["prompt_logprobs"][0] is None
    for token_id, entry, one in zip(
        told["prompt_token_ids"][1:], told["prompt_logprobs"][1:], expected.prompt_logprobs, strict=True
    ):
        assert (entry[str(token_id)]["logprob"], entry[str(token_id)]["rank"]) == (one.logprob, one.rank)
        assert entry.keys() == {str(token_id), str(one.top[0][0])}


def test_calls_of_tools_and_their_results(door: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": CHAT, "tools": [ADD], "tool_choice": "required", "temperature": 0}
    asked["parallel_tool_calls"] = False
    choice = door.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) in {("add", '{"a": 1}'), ("add", '{"a": 2}')}

    deltas = [chunk.choices[0] for chunk in door.chat.completions.create(**asked, stream=True)]
    pieces = [piece for one in deltas for piece in one.delta.tool_calls or ()]
    assert [piece.id is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert pieces[0].function is not None
    assert pieces[0].function.name == "add"
    assert "".join(p.function.arguments or "" for p in pieces if p.function is not None) == call.function.arguments
    assert deltas[-1].finish_reason == "tool_calls"

    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    goes_on = door.chat.completions.create(
        model=MODEL, messages=[*CHAT, choice.message, result], tools=[ADD], max_tokens=4
    )
    assert goes_on.usage is not None
    assert goes_on.usage.completion_tokens > 0


def test_a_form(door: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "one", "strict": True, "schema": schema}}
    answer = door.chat.completions.create(model=MODEL, messages=CHAT, response_format=form)
    assert answer.choices[0].message.content == '{"a": "x"}'


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": None, "n_predict": 0}, "n_predict"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": None}, "messages"),
        ({"request_id": "a\r\nb"}, "request_id"),
        ({"request_id": "a" * 129}, "request_id"),
        ({"messages": [{"role": "", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"content": "a"}]}, "messages[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop[0]"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"chat_template_kwargs": {"messages": 1}}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "no name"}}]}, "tools[0].function.name"),
    ],
)
def test_errors_name_the_field_as_the_api_does(post: Post, changed: dict[str, Any], param: str) -> None:
    refused = post("/v1/chat/completions", {**SAMPLED, **changed})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_a_text_cut_within_a_character_is_refused_as_that(post: Post) -> None:
    for half in ("a\ud83d", "\ude00 a"):
        refused = post("/v1/chat/completions", {**SAMPLED, "messages": [{"role": "user", "content": half}]})
        assert refused.status_code == 400
        assert "has half a character, \\ud" in refused.json()["error"]["message"]


def test_documents_are_a_variable_of_the_template(post: Post) -> None:
    assert post("/v1/chat/completions", {**SAMPLED, "documents": [{"title": "T"}]}).status_code == 200


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({"verbosity": "low"}, {"verbosity": "low"}),
        ({"verbosity": "low", "chat_template_kwargs": {"verbosity": "high"}}, {"verbosity": "high"}),
        (
            {"verbosity": "medium", "reasoning_effort": "low"},
            {"verbosity": "medium", "reasoning_effort": "low", "enable_thinking": True},
        ),
    ],
)
def test_verbosity_is_a_variable_of_the_template(given: dict[str, Any], variables: dict[str, Any]) -> None:
    request = checked(msgspec.json.decode(msgspec.json.encode({**SAMPLED, **given}), type=ChatRequest))
    assert [ask.options["template_args"] for ask in ENDPOINT.asks(request)] == [variables]


def test_verbosity_is_taken_and_must_be_a_text(post: Post) -> None:
    assert post("/v1/chat/completions", {**SAMPLED, "verbosity": "low"}).status_code == 200
    refused = post("/v1/chat/completions", {**SAMPLED, "verbosity": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "verbosity")


def test_what_is_too_large_for_a_message_of_the_ring_is_told_of_the_request(post: Post) -> None:
    fields = post("/v1/chat/completions", {**SAMPLED, "stop": ["x"] * 30_000})
    whole = post("/v1/chat/completions", {**SAMPLED, "stop": ["x" * 2_000_000]})
    assert (fields.status_code, fields.json()["error"]["param"]) == (413, "stop")
    assert (whole.status_code, whole.json()["error"]["param"]) == (413, None)
    assert whole.json()["error"]["message"].startswith("the request: ")


def test_null_is_absent_and_the_model_need_not_be_named(post: Post) -> None:
    body = {"messages": CHAT, "seed": 7, "max_tokens": 2, "stop": None, "n": None, "stream": None, "tools": []}
    assert post("/v1/chat/completions", body).status_code == 200


def test_what_openais_server_takes_besides(post: Post) -> None:
    """No nucleus but the most likely token, an empty text for no stops, and what Windows writes before a text."""
    url, body = "/v1/chat/completions", {"messages": CHAT, "max_tokens": 8}
    greedy = post(url, {**body, "temperature": 0}).json()["choices"]
    odd = json.dumps({**body, "temperature": 1.5, "seed": 3, "top_p": 0, "stop": ""})
    assert post(url, odd.encode("utf-8-sig")).json()["choices"] == greedy


def test_another_model_is_not_found(door: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        door.chat.completions.create(**{**SAMPLED, "model": "other"}, stream=True)
    assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
@pytest.mark.parametrize(
    ("path", "prompt"), [("chat/completions", {"messages": CHAT}), ("completions", {"prompt": "x"})]
)
def test_stream_options_have_no_effect_without_a_stream(
    post: Post, path: str, prompt: dict[str, Any], stream: dict[str, Any]
) -> None:
    asked = {**prompt, **stream, "max_tokens": 2}
    answer = post(f"/v1/{path}", {**asked, "stream_options": {"include_usage": True}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 2
    for malformed in ("yes", {"include_usage": "yes"}):
        refused = post(f"/v1/{path}", {**asked, "stream_options": malformed})
        assert (refused.status_code, "stream_options" in refused.text) == (400, True), refused.text
