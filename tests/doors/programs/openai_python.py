"""The openai package of Python."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field
from subjects import ASKED, computed_by, show

url, engine_metrics = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none", max_retries=0)
model = client.models.list().data[0].id
greedy: dict[str, Any] = {"model": model, "temperature": 0, "max_completion_tokens": ASKED["max_tokens"]}
tools: list[Any] = [{"type": "function", "function": ASKED["tool"]}]


def models() -> Any:
    return [one.id for one in client.models.list()] + [client.models.retrieve(model).id]


def chat() -> Any:
    return client.chat.completions.create(messages=ASKED["messages"], **greedy).model_dump()


def chat_stream() -> Any:
    with client.chat.completions.create(
        messages=ASKED["messages"], stream=True, stream_options={"include_usage": True}, **greedy
    ) as stream:
        return [chunk.model_dump() for chunk in stream]


def chat_stream_helper() -> Any:
    """The SDK's own gathering of a stream."""
    with client.chat.completions.stream(messages=ASKED["messages"], **greedy) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    return {"kinds": sorted(kinds), "content": final.choices[0].message.content}


def chat_logprobs() -> Any:
    shown = client.chat.completions.create(messages=ASKED["messages"], logprobs=True, top_logprobs=3, **greedy)
    assert shown.choices[0].logprobs is not None
    return shown.choices[0].logprobs.model_dump()


def chat_choices() -> Any:
    asked = {**greedy, "temperature": 1, "seed": 7, "n": 3}
    return [one.message.content for one in client.chat.completions.create(messages=ASKED["messages"], **asked).choices]


def chat_vllm_fields() -> Any:
    """Fields of vLLM, as the SDK sends what it does not know itself."""
    extra = {"ignore_eos": True, "min_tokens": 4, "top_k": 1, "repetition_penalty": 1.0}
    asked = {**greedy, "temperature": 1, "extra_body": extra}
    return client.chat.completions.create(messages=ASKED["messages"], **asked).model_dump()


def tools_round_trip() -> Any:
    messages = [*ASKED["messages"]]
    first = client.chat.completions.create(messages=messages, tools=tools, tool_choice="required", **greedy)
    (call,) = first.choices[0].message.tool_calls or ()
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    messages += [first.choices[0].message, result]
    second = client.chat.completions.create(messages=messages, tools=tools, **greedy)
    return {
        "first": first.model_dump(),
        "arguments": json.loads(call.function.arguments),
        "second": second.choices[0].message.content,
    }


def tools_named_streamed() -> Any:
    named: Any = {"type": "function", "function": {"name": "add"}}
    with client.chat.completions.create(
        messages=ASKED["messages"], tools=tools, tool_choice=named, stream=True, **greedy
    ) as stream:
        return [chunk.model_dump() for chunk in stream]


def json_schema() -> Any:
    class Fruit(BaseModel):
        model_config = ConfigDict(extra="forbid")
        unit: Literal["apples", "pears"]
        count: int = Field(ge=0, le=99)

    parsed = client.chat.completions.parse(messages=ASKED["messages"], response_format=Fruit, **greedy)
    fruit = parsed.choices[0].message.parsed
    assert isinstance(fruit, Fruit)
    return {"text": parsed.choices[0].message.content, "parsed": fruit.model_dump()}


def json_object() -> Any:
    shown = client.chat.completions.create(
        messages=ASKED["messages"], response_format={"type": "json_object"}, **{**greedy, "max_completion_tokens": 64}
    )
    return shown.choices[0].message.content


def completions() -> Any:
    shown = client.completions.create(model=model, prompt=ASKED["prompt"], temperature=0, max_tokens=12, logprobs=2)
    return shown.model_dump()


def completions_stream() -> Any:
    asked: dict[str, Any] = {"prompt": [ASKED["prompt"], "The end"], "temperature": 0, "max_tokens": 12}
    texts = {0: "", 1: ""}
    with client.completions.create(model=model, stream=True, **asked) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    return [texts[0], texts[1]]


def completions_echo() -> Any:
    shown = client.completions.create(
        model=model, prompt=ASKED["prompt"], temperature=0, max_tokens=1, logprobs=1, echo=True
    )
    return shown.choices[0].model_dump()


def responses() -> Any:
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": ASKED["max_tokens"]}
    whole = client.responses.create(input=ASKED["messages"], **asked)
    with client.responses.stream(input=ASKED["messages"], **asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    usage = whole.usage.model_dump() if whole.usage else None
    return {
        "text": whole.output_text,
        "streamed": streamed.output_text,
        "kinds": kinds,
        "usage": usage,
        "status": whole.status,
        "reason": whole.incomplete_details and whole.incomplete_details.reason,
    }


def responses_tools() -> Any:
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": ASKED["max_tokens"]}
    tool: Any = {"type": "function", "strict": True, **ASKED["tool"]}
    conversation = [*ASKED["messages"]]
    first = client.responses.create(input=conversation, tools=[tool], tool_choice="required", **asked)
    calls = [item for item in first.output if item.type == "function_call"]
    conversation += [item.model_dump(exclude_none=True) for item in first.output]
    conversation += [{"type": "function_call_output", "call_id": calls[0].call_id, "output": "7"}]
    second = client.responses.create(input=conversation, tools=[tool], **asked)
    arguments = json.loads(calls[0].arguments)
    return {"name": calls[0].name, "arguments": arguments, "second": second.output_text}


def responses_parsed() -> Any:
    class Fruit(BaseModel):
        model_config = ConfigDict(extra="forbid")
        unit: Literal["apples", "pears"]
        count: int = Field(ge=0, le=99)

    shown = client.responses.parse(model=model, input=ASKED["messages"], temperature=0, text_format=Fruit)
    assert isinstance(shown.output_parsed, Fruit)
    return shown.output_parsed.model_dump()


def disconnect() -> Any:
    """How many tokens were computed of an answer of 1,500 that was abandoned after the third chunk."""
    asked = {**greedy, "max_completion_tokens": 1500, "extra_body": {"ignore_eos": True}}

    def abandon() -> None:
        stream = client.chat.completions.create(messages=ASKED["messages"], stream=True, **asked)
        for _ in range(3):
            next(stream)
        stream.close()

    return computed_by(abandon, engine_metrics)


show(
    models,
    chat,
    chat_stream,
    chat_stream_helper,
    chat_logprobs,
    chat_choices,
    chat_vllm_fields,
    tools_round_trip,
    tools_named_streamed,
    json_schema,
    json_object,
    completions,
    completions_stream,
    completions_echo,
    responses,
    responses_tools,
    responses_parsed,
    disconnect,
)
