"""Chats in which the assistant calls a tool and answers from what it returned."""

import json
from random import Random
from typing import Any

from corpus import facts
from corpus.conversation import Message

WEATHER = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    """A function with one string argument, as a JSON schema."""
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


GET_WEATHER = _tool("get_weather", "The weather in a city.", "city")
GET_TIME = _tool("get_time", "The time in a city.", "city")
TOOLS = (GET_WEATHER, GET_TIME)


def tool_chat(rng: Random) -> tuple[list[Message], list[dict[str, Any]]]:
    """A chat with one call, its result and the answer; and the tools that were offered."""
    city = rng.choice([*facts.KINDS["cities"], "Madrid", "Lisbon", "Dublin", "Athens", "Moscow", "Beijing", "Seoul"])
    sky, degrees = rng.choice(WEATHER), rng.randint(0, 35)
    clock = f"{rng.randint(0, 23)}:{rng.randint(10, 59)}"
    if rng.random() < 0.5:
        name = "get_weather"
        question = rng.choice(("What is the weather in {}?", "How is the weather in {}?", "Is it warm in {} today?"))
        result: dict[str, object] = {"weather": sky, "degrees": degrees}
        answer = f"It is {sky} in {city}, with {degrees} degrees."
    else:
        name = "get_time"
        question = rng.choice(("What time is it in {}?", "What is the time in {}?", "How late is it in {}?"))
        result = {"time": clock}
        answer = f"It is {clock} in {city}."
    offered = list(TOOLS) if rng.random() < 0.6 else [GET_WEATHER if name == "get_weather" else GET_TIME]
    call = {"type": "function", "function": {"name": name, "arguments": {"city": city}}}
    messages: list[Message] = [
        {"role": "user", "content": question.format(city)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": json.dumps(result)},
        {"role": "assistant", "content": answer},
    ]
    return messages, offered
