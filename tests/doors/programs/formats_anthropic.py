"""The anthropic package of Python, with a call in every format: demanded whole and as a stream, and answered."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from anthropic import Anthropic
from subjects import ASKED, show

url, model, *formats = sys.argv[1:]
client = Anthropic(base_url=url, api_key="none", max_retries=0)
tool = {key: value for key, value in ASKED["typed_tool"].items() if key != "parameters"}
tool["input_schema"] = ASKED["typed_tool"]["parameters"]


def round_trip(name: str) -> Any:
    sampling = {"temperature": 1, "seed": 11}
    extra = {"tool_call_parser": name, "reasoning_parser": "harmony" if name == "harmony" else "none", **sampling}
    common: dict[str, Any] = {"model": model, "tools": [tool]}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    demanded = {**common, "max_tokens": 512, "tool_choice": choice, "extra_body": extra}
    conversation: list[Any] = [*ASKED["messages"]]
    first = client.messages.create(messages=conversation, **demanded)
    with client.messages.stream(messages=conversation, **demanded) as events:
        streamed = events.get_final_message()
    use = _use(first)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7"}
    conversation += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(
        messages=conversation, max_tokens=16, tool_choice={"type": "none"}, extra_body=sampling, **common
    )
    return {
        "whole": _shown(first),
        "streamed": _shown(streamed),
        "second": "".join(block.text for block in second.content),
    }


def _use(message: Any) -> Any:
    (use,) = (block for block in message.content if block.type == "tool_use")
    return use


def _shown(message: Any) -> Any:
    use = _use(message)
    return {"id": use.id, "name": use.name, "arguments": use.input, "why": message.stop_reason}


def subject(name: str) -> Callable[[], Any]:
    def tried() -> Any:
        return round_trip(name)

    tried.__name__ = name
    return tried


show(*map(subject, formats))
