"""The openai package of Python, with a call in every format: demanded whole and as a stream, and answered."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from openai import OpenAI
from subjects import ASKED, show

url, *formats = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none", max_retries=0)
model = client.models.list().data[0].id
tools: list[Any] = [{"type": "function", "function": ASKED["typed_tool"]}]


def round_trip(name: str) -> Any:
    extra = {"tool_call_parser": name, "reasoning_parser": "harmony" if name == "harmony" else "none"}
    sampled: dict[str, Any] = {"model": model, "tools": tools, "seed": 11, "temperature": 1, "extra_body": extra}
    demanded = {**sampled, "max_completion_tokens": 512, "tool_choice": "required", "parallel_tool_calls": False}
    messages = [*ASKED["messages"]]
    first = client.chat.completions.create(messages=messages, **demanded)
    with client.chat.completions.stream(messages=messages, **demanded) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    (call,) = first.choices[0].message.tool_calls or ()
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    second = client.chat.completions.create(
        messages=messages, tool_choice="none", max_completion_tokens=16, **{**sampled, "extra_body": {"min_tokens": 4}}
    )
    return {
        "whole": _shown(first),
        "streamed": _shown(streamed),
        "second": second.choices[0].message.content,
    }


def _shown(completion: Any) -> Any:
    (choice,) = completion.choices
    (call,) = choice.message.tool_calls or ()
    return {
        "id": call.id,
        "name": call.function.name,
        "arguments": call.function.arguments,
        "why": choice.finish_reason,
    }


def subject(name: str) -> Callable[[], Any]:
    def tried() -> Any:
        return round_trip(name)

    tried.__name__ = name
    return tried


show(*map(subject, formats))
