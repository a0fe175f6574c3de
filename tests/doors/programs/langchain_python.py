"""langchain-openai."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field
from subjects import ASKED, show

(url,) = sys.argv[1:]
question = HumanMessage(ASKED["messages"][0]["content"])
chats: Any = {"base_url": url, "api_key": "none", "model": "tiny", "temperature": 0, "max_retries": 0}
model = ChatOpenAI(**chats, max_completion_tokens=ASKED["max_tokens"])


class Fruit(BaseModel):
    model_config = ConfigDict(extra="forbid")
    unit: Literal["apples", "pears"]
    count: int = Field(ge=0, le=99)


@tool
def add(a: Annotated[int, Field(ge=0, le=99)], b: Annotated[int, Field(ge=0, le=99)]) -> int:
    """Add two numbers."""
    return a + b


def chat() -> Any:
    shown = model.invoke([question])
    return {"text": shown.content, "usage": shown.usage_metadata, "reason": shown.response_metadata["finish_reason"]}


def stream() -> Any:
    whole = None
    for chunk in model.stream([question], stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return {"text": whole.content, "usage": whole.usage_metadata}


async def together() -> Any:
    return [shown.content for shown in await asyncio.gather(*(model.ainvoke([question]) for _ in range(4)))]


def tools_round_trip() -> Any:
    first = model.bind_tools([add], tool_choice="required").invoke([question])
    (call,) = first.tool_calls
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    second = model.bind_tools([add]).invoke([question, first, result])
    return {"name": call["name"], "arguments": call["args"], "second": second.content}


def structured() -> Any:
    """By JSON schema, and by the call of a tool."""
    methods: tuple[Any, ...] = ("json_schema", "function_calling")
    return [model.with_structured_output(Fruit, method=method).invoke([question]).model_dump() for method in methods]


def completion() -> Any:
    return OpenAI(**chats, max_tokens=12).invoke(ASKED["prompt"])


def responses() -> Any:
    return (
        ChatOpenAI(**chats, max_completion_tokens=ASKED["max_tokens"], use_responses_api=True).invoke([question]).text
    )


show(chat, stream, together, tools_round_trip, structured, completion, responses)
