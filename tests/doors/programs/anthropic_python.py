"""The anthropic package of Python."""

from __future__ import annotations

import sys
from typing import Any

import anthropic
from anthropic import Anthropic
from subjects import ASKED, computed_by, show

url, model, engine_metrics = sys.argv[1:]
client = Anthropic(base_url=url, api_key="none", max_retries=0)
greedy: dict[str, Any] = {"model": model, "max_tokens": ASKED["max_tokens"], "extra_body": {"temperature": 0}}
"""The SDK has no parameter for the temperature any more, but sends it all the same."""
tool = {key: value for key, value in ASKED["tool"].items() if key != "parameters"}
tool["input_schema"] = ASKED["tool"]["parameters"]


def messages() -> Any:
    return client.messages.create(messages=ASKED["messages"], **greedy).model_dump()


def stream() -> Any:
    """The SDK's own gathering of a stream, which refuses events that are out of order."""
    with client.messages.stream(messages=ASKED["messages"], **greedy) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    return {"kinds": kinds, "text": events.get_final_text(), "final": final.model_dump()}


def raw_stream() -> Any:
    with client.messages.create(messages=ASKED["messages"], stream=True, **greedy) as events:
        return [event.model_dump() for event in events]


def system_and_stop() -> Any:
    asked = {**greedy, "system": [{"type": "text", "text": "Be short."}], "stop_sequences": ["7"]}
    shown = client.messages.create(messages=ASKED["messages"], **asked)
    return {
        "text": shown.content[0].text if shown.content else "",
        "reason": shown.stop_reason,
        "at": shown.stop_sequence,
    }


def tools_round_trip() -> Any:
    conversation: list[Any] = [*ASKED["messages"]]
    first = client.messages.create(messages=conversation, tools=[tool], tool_choice={"type": "any"}, **greedy)
    (use,) = (block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7"}
    conversation += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(messages=conversation, tools=[tool], **greedy)
    return {"reason": first.stop_reason, "name": use.name, "input": use.input, "second": second.content[0].text}


def tools_streamed() -> Any:
    choice = {"type": "tool", "name": "add"}
    with client.messages.stream(messages=ASKED["messages"], tools=[tool], tool_choice=choice, **greedy) as events:
        pieces = [event.partial_json for event in events if event.type == "input_json"]
        final = events.get_final_message()
    (use,) = (block for block in final.content if block.type == "tool_use")
    return {"pieces": pieces, "input": use.input, "reason": final.stop_reason}


def count_tokens() -> Any:
    plain = client.messages.count_tokens(model=model, messages=ASKED["messages"]).input_tokens
    return {
        "plain": plain,
        "tools": client.messages.count_tokens(model=model, messages=ASKED["messages"], tools=[tool]).input_tokens,
    }


def refusals() -> Any:
    def refusal(**options: Any) -> Any:
        try:
            client.messages.create(**{"messages": ASKED["messages"], **greedy, **options})
        except anthropic.APIStatusError as error:
            body: Any = error.body
            return {"kind": type(error).__name__, "status": error.status_code, "body": body, "id": error.request_id}
        return None

    return {
        "temperature": refusal(extra_body={"temperature": -1}),
        "unknown model": refusal(model="unknown"),
        "no messages": refusal(messages=[]),
        "streamed": refusal(model="unknown", stream=True),
        "too long": refusal(messages=[{"role": "user", "content": "word " * 3000}]),
    }


def disconnect() -> Any:
    """How many tokens were computed of a long answer, which its form demands, that was abandoned at its beginning."""
    long = {"type": "object", "properties": {"text": {"type": "string", "minLength": 5000}}, "required": ["text"]}
    asked = {**greedy, "max_tokens": 1500, "tools": [{"name": "write", "input_schema": long}]}
    asked["tool_choice"] = {"type": "any"}

    def abandon() -> None:
        with client.messages.create(messages=ASKED["messages"], stream=True, **asked) as events:
            for _ in range(4):
                next(events)

    return computed_by(abandon, engine_metrics)


show(
    messages, stream, raw_stream, system_and_stop, tools_round_trip, tools_streamed, count_tokens, refusals, disconnect
)
