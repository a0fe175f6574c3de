"""openai-agents: an agent that must call its tool, over chats and over responses."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, Field
from subjects import ASKED, show

(url,) = sys.argv[1:]
question = ASKED["messages"][0]["content"]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
MODELS: Any = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
greedy = ModelSettings(temperature=0, max_tokens=ASKED["max_tokens"])
called = []


class Fruit(BaseModel):
    model_config = ConfigDict(extra="forbid")
    unit: Literal["apples", "pears"]
    count: int = Field(ge=0, le=99)


@function_tool
def add(a: Annotated[int, Field(ge=0, le=99)], b: Annotated[int, Field(ge=0, le=99)]) -> int:
    """Add two numbers."""
    called.append((a, b))
    return a + b


def agent(model: str, settings: ModelSettings = greedy, **options: Any) -> Agent:
    return Agent(name="one", model=MODELS[model]("tiny", client), model_settings=settings, **options)


async def run() -> Any:
    return {model: (await Runner.run(agent(model), question)).final_output for model in MODELS}


async def stream() -> Any:
    shown = {}
    for model in MODELS:
        events = Runner.run_streamed(agent(model), question).stream_events()
        data = [event.data async for event in events if event.type == "raw_response_event"]
        shown[model] = "".join(one.delta for one in data if one.type == "response.output_text.delta")
    return shown


async def tool_round_trip() -> Any:
    """The agent demands a call in the first turn only, runs the tool, and goes on with its result."""
    demanding = ModelSettings(temperature=0, max_tokens=ASKED["max_tokens"], tool_choice="required")
    shown = {}
    for model in MODELS:
        called.clear()
        output = (await Runner.run(agent(model, demanding, tools=[add]), question)).final_output
        shown[model] = {"called": [*called], "output": output}
    return shown


async def structured() -> Any:
    agents = {model: agent(model, output_type=Fruit) for model in MODELS}
    return {model: (await Runner.run(one, question)).final_output.model_dump() for model, one in agents.items()}


show(run, stream, tool_round_trip, structured)
