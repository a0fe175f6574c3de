"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API, as its SDKs and Claude Code use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from ringline import Content, Delta, Finished, FinishReason, Message, Part, Reasoning, RingError
from ringline.options import TokenizeOptions
from starlette.responses import Response

from services.gateway.answer import Answer, Ask, tokenize
from services.gateway.anthropic.errors import ANTHROPIC, error_body
from services.gateway.anthropic.events import PING, SIGNATURE, MessageEvents, stop_of, usage_of
from services.gateway.anthropic.request import CountRequest, MessageRequest, all_options, messages_of, prompt_options
from services.gateway.fields import checked
from services.gateway.http.api_error import api_error_from
from services.gateway.http.call import Call, Endpoint, parse
from services.gateway.http.event_stream import EventStream
from services.gateway.parts import Run, is_to_be_made, is_whole, runs_of

_MESSAGE = msgspec.json.Decoder(MessageRequest)
_COUNT = msgspec.json.Decoder(CountRequest)


async def create_message(call: Call) -> Response:
    """An answer to a conversation, at once or as events."""
    request, ask = await call.aside(lambda: _read(call.body))
    answer = await Answer.begin(call, [ask])
    message_id = f"msg_{call.request_id}"
    max_tokens = ask.options["max_tokens"] or 0
    if request.stream:
        events = MessageEvents(message_id, max_tokens=max_tokens)
        return EventStream(_stream(call, answer, events), ping=PING)
    async with aclosing(answer):
        message = await _message(answer, message_id, max_tokens)
    return Response(msgspec.json.encode(message), media_type="application/json")


async def count_tokens(call: Call) -> Response:
    """The tokens of a prompt."""
    messages, options = await call.aside(lambda: _read_prompt(call.body))
    tokens = await tokenize(call, None, messages, options)
    return Response(msgspec.json.encode({"input_tokens": len(tokens.token_ids)}), media_type="application/json")


def _read(body: bytes) -> tuple[MessageRequest, Ask]:
    """The request, and what it asks of the ring."""
    request = checked(parse(_MESSAGE, body))
    messages = messages_of(request)
    return request, Ask(all_options(request), messages=messages)


def _read_prompt(body: bytes) -> tuple[Sequence[Message], TokenizeOptions]:
    request = checked(parse(_COUNT, body))
    return messages_of(request), prompt_options(request)


async def _stream(call: Call, answer: Answer, events: MessageEvents) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer):
        yield events.begin(answer.admitted[0])
        try:
            async for _, event in answer.events():
                if written := events.add(event):
                    yield written
        except RingError as error:
            yield b"event: error\ndata: %s\n\n" % error_body(api_error_from(error, ANTHROPIC.name_of), call.request_id)
        else:
            yield events.end(answer.usage)


async def _message(answer: Answer, message_id: str, max_tokens: int) -> dict[str, Any]:
    """The whole message, its blocks in the order in which the model wrote them."""
    parts: list[Part] = []
    reason: FinishReason | None = None
    stop: int | str | None = None
    async for _, event in answer.events():
        if isinstance(event, Delta):
            parts += event.parts
        elif isinstance(event, Finished):
            reason, stop = event.reason, event.stop
    request = answer.admitted[0]
    content = [block for run in runs_of(parts) if (block := _block(run, reason)) is not None]
    calls = any(block["type"] == "tool_use" for block in content)
    context_full = (request.options.get("max_tokens") or max_tokens) < max_tokens
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        **stop_of(reason, stop, calls=calls, context_full=context_full),
        "usage": usage_of(answer.usage),
    }


def _block(run: Run, reason: FinishReason | None) -> dict[str, Any] | None:
    """A block of a message that ended for ``reason``; None for a call that is not to be made."""
    text, first = run.text, run.first
    if isinstance(first, Reasoning):
        return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
    if isinstance(first, Content):
        return {"type": "text", "text": text}
    if not is_to_be_made(text, reason):
        return None
    arguments = msgspec.Raw(text.encode() if is_whole(text) else b"{}")  # max_tokens ended the answer within them
    return {"type": "tool_use", "id": first.id, "name": first.name, "input": arguments}


ENDPOINTS = (
    Endpoint("POST", "/v1/messages", create_message, ANTHROPIC),
    Endpoint("POST", "/v1/messages/count_tokens", count_tokens, ANTHROPIC),
)
