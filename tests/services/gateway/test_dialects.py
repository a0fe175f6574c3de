"""The SDKs of OpenAI and Anthropic over the running ring: what they gather of an answer is what the ring said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from pydantic import BaseModel
from ringline import Client, Generation

from tests.ring import Ring

if TYPE_CHECKING:  # it takes seconds to import: only the process that runs these tests does
    import anthropic

HELLO: Any = [{"role": "user", "content": "Hello"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class Place(BaseModel):
    city: Literal["Oslo", "Rome"]


@pytest.fixture(scope="module")
def answer(ring: Ring) -> Generation:
    """Of the ring itself to ``HELLO``."""
    with Client(ring.address) as client:
        return client.generate(messages=HELLO, max_tokens=20, temperature=0, parse=True)


@pytest.fixture(scope="module")
def client(ring: Ring) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=ring.http, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def messages(client: anthropic.Anthropic) -> anthropic.resources.Messages:
    return client.messages


@pytest.fixture(scope="module")
def responses(ring: Ring) -> Iterator[openai.resources.Responses]:
    with openai.OpenAI(base_url=f"{ring.http}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


def test_messages(messages: anthropic.resources.Messages, answer: Generation) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "extra_body": {"temperature": 0}}
    whole = messages.create(**asked)
    with messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        (block,) = message.content
        assert block.type == "text"
        assert (block.text, message.stop_reason) == (answer.content, "end_turn")
        usage = message.usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == answer.usage.prompt_tokens
        assert usage.output_tokens == answer.usage.completion_tokens
    assert messages.count_tokens(model="tiny", messages=HELLO).input_tokens == answer.usage.prompt_tokens


def test_models_as_anthropic_lists_them(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("tiny", "model", 2048)
    assert client.models.retrieve("tiny") == model


def test_tools_of_messages(messages: anthropic.resources.Messages) -> None:
    asked: Any = {
        "model": "tiny",
        "max_tokens": 40,
        "tools": [{"name": "visit", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "visit"},
    }
    with messages.stream(messages=HELLO, **asked) as stream:
        message = stream.get_final_message()
    (call,) = message.content
    assert call.type == "tool_use"
    assert set(call.input) == {"city"}  # type: ignore[call-overload]
    assert message.stop_reason == "tool_use"
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}
    goes_on = messages.create(messages=[*HELLO, {"role": "assistant", "content": message.content}, result], **asked)
    assert goes_on.content[0].type == "tool_use"


def test_a_refused_message(messages: anthropic.resources.Messages) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as refused:
        messages.create(model="other", messages=HELLO, max_tokens=1)
    assert refused.value.type == "not_found_error"
    assert refused.value.request_id
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://localhost"}}
    with pytest.raises(
        anthropic.BadRequestError,
        match=r"messages\[0\].content\[0\].source.url: the URL leads to localhost, from",
    ):
        messages.create(model="tiny", messages=[{"role": "user", "content": [image]}], max_tokens=1)


def test_responses(responses: openai.resources.Responses, answer: Generation) -> None:
    asked: Any = {"model": "tiny", "input": HELLO, "max_output_tokens": 20, "temperature": 0}
    asked["include"] = ["message.output_text.logprobs"]
    whole = responses.create(**asked)
    with responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    assert text == answer.content
    for response in (whole, streamed):
        assert (response.output_text, response.status) == (answer.content, "completed")
        usage = response.usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        (part,) = response.output[0].content  # type: ignore[union-attr]
        tokens = [entry.token for entry in part.logprobs or ()]  # type: ignore[union-attr]
        assert (len(tokens), "".join(tokens)) == (answer.usage.completion_tokens - 1, answer.content), "not the end's"


def test_tools_of_responses(responses: openai.resources.Responses) -> None:
    tool: Any = {"type": "function", "name": "visit", "parameters": SCHEMA, "strict": True}
    asked: Any = {"model": "tiny", "tools": [tool, {"type": "web_search"}], "tool_choice": "required"}
    asked |= {"max_output_tokens": 40, "parallel_tool_calls": False}
    with responses.stream(input=HELLO, **asked) as stream:
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert set(call.parsed_arguments) == {"city"}  # type: ignore[arg-type]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    goes_on = responses.create(input=[*HELLO, call.to_dict(), result], **asked)
    assert goes_on.output[0].type == "function_call"


def test_the_tokens_of_a_response_that_is_not_made(responses: openai.resources.Responses, answer: Generation) -> None:
    counted = responses.input_tokens.count(model="tiny", input=HELLO)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", answer.usage.prompt_tokens)
    tool: Any = {"type": "function", "name": "visit", "parameters": SCHEMA, "strict": True}
    asked: Any = {"model": "tiny", "tools": [tool], "tool_choice": "required", "input": HELLO, "instructions": "Go."}
    made = responses.create(max_output_tokens=1, **asked)
    assert made.usage is not None
    assert responses.input_tokens.count(**asked).input_tokens == made.usage.input_tokens > counted.input_tokens


def test_a_response_of_a_schema(responses: openai.resources.Responses) -> None:
    parsed = responses.parse(model="tiny", input="Hello", text_format=Place).output_parsed
    assert isinstance(parsed, Place)


def test_a_refused_response(responses: openai.resources.Responses) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        responses.create(model="tiny", input="Hello", previous_response_id="resp_1")
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="no POST '/v1/responses/compact' here; shorten the input yourself"):
        responses.compact(model="tiny", input="Hello")
