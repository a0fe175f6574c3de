"""pydantic-ai: agents on OpenAI's chats, OpenAI's responses and Anthropic's messages."""

from __future__ import annotations

import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request_sync
from pydantic_ai.messages import ModelRequest, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
from subjects import ASKED, show

(url,) = sys.argv[1:]
question = ASKED["messages"][0]["content"]
openai = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
settings: Any = {"temperature": 0, "max_tokens": ASKED["max_tokens"]}
chat_model = OpenAIChatModel("tiny", provider=openai)
models: dict[str, Any] = {
    "chat": chat_model,
    "responses": OpenAIResponsesModel("tiny", provider=openai),
    "messages": AnthropicModel("tiny", provider=AnthropicProvider(base_url=url, api_key="none")),
}


class Fruit(BaseModel):
    model_config = ConfigDict(extra="forbid")
    unit: Literal["apples", "pears"]
    count: int = Field(ge=0, le=99)


def run() -> Any:
    shown = {name: Agent(model, model_settings=settings).run_sync(question) for name, model in models.items()}
    return {name: {"text": one.output, "tokens": one.usage.output_tokens} for name, one in shown.items()}


async def stream() -> Any:
    async with Agent(chat_model, model_settings=settings).run_stream(question) as result:
        return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]


def structured() -> Any:
    """By JSON schema, and by the call of a tool, which pydantic-ai demands."""
    forms = {"native": NativeOutput(Fruit), "tool": ToolOutput(Fruit)}
    agents = {name: Agent(chat_model, output_type=form, model_settings=settings) for name, form in forms.items()}
    return {name: agent.run_sync(question).output.model_dump() for name, agent in agents.items()}


def tool_round_trip() -> Any:
    """A call that is demanded, and an answer to its result."""
    add = ToolDefinition(
        name="add", description=ASKED["tool"]["description"], parameters_json_schema=ASKED["tool"]["parameters"]
    )
    tools, shown = ModelRequestParameters(function_tools=[add]), {}
    for name, model in models.items():
        messages: list[Any] = [ModelRequest.user_text_prompt(question)]
        demanding: Any = {**settings, "tool_choice": "required"}
        first = model_request_sync(model, messages, model_settings=demanding, model_request_parameters=tools)
        (call,) = (part for part in first.parts if isinstance(part, ToolCallPart))
        result = ToolReturnPart(tool_name="add", content="7", tool_call_id=call.tool_call_id)
        messages += [first, ModelRequest(parts=[result])]
        second = model_request_sync(model, messages, model_settings=settings, model_request_parameters=tools)
        texts = [part.content for part in second.parts if isinstance(part, TextPart)]
        shown[name] = {"arguments": call.args_as_dict(), "second": "".join(texts)}
    return shown


show(run, stream, structured, tool_round_trip)
