"""The openai package of Python: vectors."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from openai import APIStatusError, AsyncOpenAI, OpenAI
from subjects import ASKED, show

(url,) = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none", max_retries=0)
model = client.models.list().data[0].id
TEXTS = ASKED["texts"]


def models() -> Any:
    return client.models.retrieve(model).to_dict()


def vectors() -> Any:
    """As it asks by default: in base64, which it decodes."""
    found = client.embeddings.create(model=model, input=TEXTS)
    return {"vectors": [one.embedding for one in found.data], "usage": found.usage.model_dump(), "model": found.model}


def as_numbers() -> Any:
    found = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    return [one.embedding for one in found.data]


def of_one_text() -> Any:
    return client.embeddings.create(model=model, input=TEXTS[0]).data[0].embedding


def of_ids() -> Any:
    found = client.embeddings.create(model=model, input=[[5, 6, 7], [8]])
    return [one.embedding for one in found.data]


def with_fields_of_vllm() -> Any:
    extra = {"truncate_prompt_tokens": 4, "normalize": False, "prompt_name": "query"}
    return client.embeddings.create(model=model, input=TEXTS[0], extra_body=extra).data[0].embedding


async def many() -> Any:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as other:
        found = await asyncio.gather(*(other.embeddings.create(model=model, input=TEXTS[at % 3]) for at in range(60)))
    return [one.data[0].embedding for one in found]


def errors() -> Any:
    seen = {}
    wrong: dict[str, dict[str, Any]] = {
        "model": {"model": "unknown"},
        "input": {"input": []},
        "an empty text": {"input": ["a", ""]},
        "a long text": {"input": ["a", "b " * 300]},
        "dimensions": {"dimensions": 7},
    }
    for name, options in wrong.items():
        try:
            client.embeddings.create(**{"model": model, "input": TEXTS, **options})
        except APIStatusError as error:
            seen[name] = [type(error).__name__, error.status_code, error.param, error.code]
    try:
        client.chat.completions.create(model=model, messages=ASKED["messages"])
    except APIStatusError as error:
        seen["a chat"] = [type(error).__name__, error.status_code, error.param, error.code]
    return seen


show(models, vectors, as_numbers, of_one_text, of_ids, with_fields_of_vllm, many, errors)
