"""litellm, as a library: the address is one of vLLM's kind, of OpenAI's, and of Anthropic's."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm
from subjects import ASKED, show

(url,) = sys.argv[1:]
litellm.telemetry = False
server: Any = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
greedy: Any = {"model": "hosted_vllm/tiny", "temperature": 0, "max_tokens": ASKED["max_tokens"], **server}
tools = [{"type": "function", "function": ASKED["tool"]}]


def chat() -> Any:
    return litellm.completion(messages=ASKED["messages"], **greedy).model_dump()


def chat_as_openai() -> Any:
    asked = {**greedy, "model": "openai/tiny"}
    return litellm.completion(messages=ASKED["messages"], **asked).choices[0].message.content


def chat_as_anthropic() -> Any:
    asked = {**greedy, "model": "anthropic/tiny", "api_base": url}
    return litellm.completion(messages=ASKED["messages"], **asked).choices[0].message.content


def stream() -> Any:
    chunks = list(
        litellm.completion(messages=ASKED["messages"], stream=True, stream_options={"include_usage": True}, **greedy)
    )
    whole = litellm.stream_chunk_builder(chunks)
    return {"text": whole.choices[0].message.content, "usage": whole.usage.model_dump()}


def tools_round_trip() -> Any:
    messages = [*ASKED["messages"]]
    first = litellm.completion(messages=messages, tools=tools, tool_choice="required", **greedy).choices[0]
    (call,) = first.message.tool_calls
    messages += [first.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    second = litellm.completion(messages=messages, tools=tools, **greedy).choices[0]
    arguments = json.loads(call.function.arguments)
    return {"reason": first.finish_reason, "arguments": arguments, "second": second.message.content}


def json_schema() -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": ASKED["schema"], "strict": True}}
    return json.loads(
        litellm.completion(messages=ASKED["messages"], response_format=form, **greedy).choices[0].message.content
    )


def completion() -> Any:
    asked = {**greedy, "model": "text-completion-openai/tiny", "max_tokens": 12}
    return litellm.text_completion(prompt=ASKED["prompt"], **asked).choices[0].text


def errors() -> Any:
    seen = {}
    for name, options in {"model": {"model": "hosted_vllm/unknown"}, "temperature": {"temperature": -1}}.items():
        try:
            litellm.completion(messages=ASKED["messages"], **{**greedy, **options})
        except Exception as error:
            seen[name] = type(error).__name__
    return seen


show(chat, chat_as_openai, chat_as_anthropic, stream, tools_round_trip, json_schema, completion, errors)
