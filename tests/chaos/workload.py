"""A pool of requests of every kind, each with one right answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.ring import MODEL
from text_core.tokenizer import Tokenizer

TOPICS = ("a small dog", "the king of the hill", "two sisters", "an old boat", "the red ball", "a cat named Tom")
SHARED = "Once upon a time there was a little girl who lived in a house near the woods with her mother. " * 4
STOP_TOKENS = [" the", " and", ".", "<|im_end|>"]
"""Tokens whose text is a stop string as well."""
HERO = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
        "kind": {"enum": ["dog", "cat", "king", "boat"]},
    },
    "required": ["name", "age", "friends", "kind"],
    "additionalProperties": False,
}
SENTENCES = """start: sentence+
sentence: ("The" | "A") " " ("fox" | "dog" | "girl") " " ("ran" | "slept" | "sang") /( very){0,6}/ ".\\n"
"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("get_weather", "get_time")
]


@dataclass(frozen=True)
class RequestSpec:
    """One deterministic request."""

    name: str
    prompt: str | None
    messages: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    """Whose vectors are asked for, in place of an answer."""
    tenant: str = ""
    """Who asks; empty: the request does not say."""

    def arguments(self) -> dict[str, Any]:
        prompt = {"messages": list(self.messages)} if self.messages else {"prompt": self.prompt}
        return {**prompt, **self.options}


def pool(seed: int, per_kind: int = 4) -> list[RequestSpec]:
    """``per_kind`` requests of every kind."""
    random_ = random.Random(seed)
    tokenizer = Tokenizer.from_directory(MODEL)
    stop_token_ids = [tokenizer.encode(text)[0] for text in STOP_TOKENS]
    specs = []
    for index in range(per_kind):
        topic = random_.choice(TOPICS)
        text = f"Once upon a time there was {topic}"
        seeded = {"temperature": 0.9, "top_p": 0.95, "seed": random_.getrandbits(32)}
        length = {"max_tokens": random_.randint(60, 200), "ignore_eos": True}
        kinds: dict[str, dict[str, Any]] = {
            "greedy": {"temperature": 0.0, **length},
            "seeded": {**seeded, **length},
            "choices": {**seeded, **length, "n": 3, "max_tokens": 80},
            "stop": {**seeded, "stop": [" the", "and "], "min_tokens": 30, "max_tokens": 200},
            "tokens": {**seeded, "stop_token_ids": stop_token_ids, "stop": STOP_TOKENS, "min_tokens": 20, "n": 2},
            "logprobs": {**seeded, "logprobs": 5, "prompt_logprobs": 2, "max_tokens": 60},
            "penalties": {**seeded, **length, "repetition_penalty": 1.1, "presence_penalty": 0.3, "top_k": 40},
            "ends": {**seeded, "max_tokens": 300},
            "long": {**seeded, "ignore_eos": True, "max_tokens": 400},
            "beams": {"beam_search": {"width": 4}, "n": 2, "max_tokens": 80},
        }
        specs += [RequestSpec(f"{kind}-{index}", text, options=options) for kind, options in kinds.items()]
        specs.append(RequestSpec(f"prefix-{index}", SHARED + f"One day she met {topic}", options={**seeded, **length}))
        messages = ({"role": "user", "content": f"Tell me about {topic}."},)
        specs.append(RequestSpec(f"chat-{index}", None, messages, {**seeded, "max_tokens": 120}))
        shown = {"skip_special_tokens": False, "stop": STOP_TOKENS[-1:]}
        specs.append(RequestSpec(f"shown-{index}", None, messages, {**seeded, **shown, "max_tokens": 120}))
        specs += _constrained(index, text, topic, seeded)
    return specs


def _constrained(index: int, text: str, topic: str, seeded: dict[str, Any]) -> list[RequestSpec]:
    """Requests whose answers have a form, and calls of tools: a third of the pool."""
    kinds: dict[str, dict[str, Any]] = {
        "schema": {"temperature": 0.0, "json_schema": HERO, "logprobs": 2, "max_tokens": 150},
        "schemas": {**seeded, "json_schema": HERO, "any_whitespace": True, "n": 2, "max_tokens": 120},
        "regex": {**seeded, "regex": r"([A-Z][a-z]{2,8} ){20,40}end\.", "frequency_penalty": 0.5},
        "grammar": {**seeded, "grammar": SENTENCES, "stop": ["fox sang"], "min_tokens": 20, "max_tokens": 200},
    }
    specs = [RequestSpec(f"{kind}-{index}", text, options=options) for kind, options in kinds.items()]
    question = ({"role": "user", "content": f"What is the weather in Paris, for {topic}?"},)
    tools = {**seeded, "tools": TOOLS, "max_tokens": 100}
    specs.append(RequestSpec(f"required-{index}", None, question, {**tools, "tool_choice": "required"}))
    question = ({"role": "user", "content": "What time is it in Rome?"},)
    specs.append(RequestSpec(f"auto-{index}", None, question, {**tools, "n": 2}))
    return specs
