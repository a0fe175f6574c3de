"""The openai package of Python: its exceptions, its retries, its timeouts."""

from __future__ import annotations

import sys
from typing import Any

import openai
from openai import OpenAI
from subjects import ASKED, show

url, nowhere = sys.argv[1:]
asked: dict[str, Any] = {"model": "tiny", "messages": ASKED["messages"], "temperature": 0, "max_completion_tokens": 1}


def client_of(tenant: str, **options: Any) -> OpenAI:
    return OpenAI(**{"base_url": url, "api_key": f"key-of-{tenant}", "max_retries": 0, **options})


free = client_of("free")


def refusal(ask: Any) -> Any:
    """The exception that the SDK makes of a refusal."""
    try:
        ask()
    except openai.APIStatusError as error:
        names = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
        headers = {name: error.response.headers.get(name) for name in names}
        details = {"type": error.type, "param": error.param, "code": error.code, "message": error.message}
        return {"kind": type(error).__name__, "status": error.status_code, **details, "headers": headers}
    return None


def chat(client: OpenAI = free, **options: Any) -> Any:
    return client.chat.completions.create(**{**asked, **options})


def refusals() -> Any:
    long = [{"role": "user", "content": "word " * 3000}]
    huge = [{"role": "user", "content": "x" * 40_000_000}]
    schema = {"type": "json_schema", "json_schema": {"name": "broken", "schema": {"type": "nothing"}}}
    return {
        "wrong key": refusal(lambda: chat(client_of("nobody"))),
        "model of others": refusal(lambda: chat(client_of("elsewhere"))),
        "unknown model": refusal(lambda: chat(model="unknown")),
        "temperature": refusal(lambda: chat(temperature=-1)),
        "temperature of a wrong type": refusal(lambda: chat(temperature="warm")),
        "messages of a wrong type": refusal(lambda: chat(messages="hello")),
        "no messages": refusal(lambda: chat(messages=[])),
        "too long": refusal(lambda: chat(messages=long)),
        "too large": refusal(lambda: chat(messages=huge)),
        "schema": refusal(lambda: chat(response_format=schema)),
        "streamed": refusal(lambda: chat(model="unknown", stream=True)),
        "unknown path": refusal(lambda: free.get("/nothing", cast_to=object)),
        "images": refusal(lambda: free.images.generate(prompt="a cat")),
        "no processor": refusal(lambda: chat(client_of("free", base_url=nowhere))),
    }


def retry_after_429() -> Any:
    """A tenant that sends too much is told when to come again, and the SDK comes again then."""
    slow = client_of("slow")
    refused = None
    sent = 0
    while refused is None and sent < 200:
        refused = refusal(lambda: chat(slow))
        sent += 1
    patient = client_of("slow", max_retries=5).chat.completions.with_raw_response.create(**asked)
    return {"refused": refused, "sent": sent, "retries": patient.retries_taken, "status": patient.status_code}


def timeout() -> Any:
    try:
        chat(client_of("free", timeout=0.3), max_completion_tokens=1900, extra_body={"ignore_eos": True})
    except openai.APITimeoutError as error:
        return type(error).__name__
    return None


show(refusals, retry_after_429, timeout)
