"""instructor: instances of a model class, by a call that is named, by JSON Schema, and over responses."""

from __future__ import annotations

import sys
from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field
from subjects import ASKED, show

(url,) = sys.argv[1:]
openai = OpenAI(base_url=url, api_key="none", max_retries=0)
MODES = {
    "call": instructor.Mode.TOOLS,
    "schema": instructor.Mode.JSON_SCHEMA,
    "responses": instructor.Mode.RESPONSES_TOOLS,
}
CLIENTS: Any = {form: instructor.from_openai(openai, mode=mode).chat.completions for form, mode in MODES.items()}
messages = ASKED["messages"]
asked: dict[str, Any] = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": ASKED["max_tokens"]}


class Fruit(BaseModel):
    model_config = ConfigDict(extra="forbid")
    unit: Literal["apples", "pears"]
    count: int = Field(ge=0, le=99)


def chat() -> Any:
    """Without a class, what comes is the SDK's answer."""
    return CLIENTS["call"].create(response_model=None, **asked).choices[0].message.content


def structured() -> Any:
    return {
        form: one.create(response_model=Fruit, max_retries=0, **asked).model_dump() for form, one in CLIENTS.items()
    }


def partial() -> Any:
    """The last of the instances that grow as the stream comes."""
    return {
        form: list(one.create_partial(response_model=Fruit, max_retries=0, **asked))[-1].model_dump()
        for form, one in CLIENTS.items()
    }


def asked_again() -> Any:
    """How many instances the class sees if it refuses the first: that goes back to the model, with what was wrong."""
    seen = []

    class Picky(Fruit):
        def model_post_init(self, context: Any) -> None:
            seen.append(self.count)
            if len(seen) == 1:
                raise ValueError("count again")

    shown = {}
    for form, one in CLIENTS.items():
        seen.clear()
        one.create(response_model=Picky, max_retries=1, **asked)
        shown[form] = len(seen)
    return shown


show(chat, structured, partial, asked_again)
