"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API, as its SDKs and Claude Code use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from ringline import Admitted, Content, Delta, Event, Finished, FinishReason, Message, Part, Reasoning, Usage
from ringline.options import TokenizeOptions
from starlette.responses import Response

from services.gateway.answer import Answer, Ask, tokenize
from services.gateway.anthropic.errors import ANTHROPIC, error_body
from services.gateway.anthropic.events import PING, SIGNATURE, MessageEvents, stop_of, usage_of
from services.gateway.anthropic.request import CountRequest, MessageRequest, all_options, messages_of, prompt_options
from services.gateway.fields import checked, names_given, naming_given
from services.gateway.generation import GenerationEndpoint, Writer
from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Call, Endpoint, parse
from services.gateway.other_servers import budget_names
from services.gateway.parts import Run, is_to_be_made, is_whole, runs_of

_COUNT = msgspec.json.Decoder(CountRequest)


def _asks(request: MessageRequest) -> Sequence[Ask]:
    messages = messages_of(request)
    return [Ask(all_options(request), messages=messages)]


class MessageWriter(Writer):
    """Writes a message."""

    def __init__(self, call: Call, max_tokens: int, admitted: Admitted, model: str) -> None:
        """``max_tokens``: the request's."""
        self._model = model
        self._request_id = call.request_id
        self._max_tokens = max_tokens
        self._admitted = admitted
        self._events = MessageEvents(f"msg_{call.request_id}", max_tokens=max_tokens)

    @classmethod
    async def begin_answer(
        cls, call: Call, _request: MessageRequest, asks: Sequence[Ask], answer: Answer
    ) -> MessageWriter:
        return cls(call, asks[0].options["max_tokens"] or 0, answer.admitted[0], answer.model)

    def begin(self) -> bytes:
        return self._events.begin(self._admitted, self._model)

    async def add(self, ask: int, event: Event) -> bytes:
        return self._events.add(event)

    def end(self, usage: Usage) -> bytes:
        return self._events.end(usage)

    def fail(self, error: ApiError) -> bytes:
        return b"event: error\ndata: %s\n\n" % error_body(error, self._request_id)

    async def whole(self, answer: Answer) -> bytes:
        """Blocks keep the order in which the model wrote them."""
        parts: list[Part] = []
        reason: FinishReason | None = None
        stop: int | str | None = None
        async for _, event in answer.events():
            if isinstance(event, Delta):
                parts += event.parts
            elif isinstance(event, Finished):
                reason, stop = event.reason, event.stop
        content = [block for run in runs_of(parts) if (block := _block(run, reason)) is not None]
        calls = any(block["type"] == "tool_use" for block in content)
        context_full = (self._admitted.options.get("max_tokens") or self._max_tokens) < self._max_tokens
        return msgspec.json.encode(
            {
                "id": f"msg_{self._request_id}",
                "type": "message",
                "role": "assistant",
                "model": self._model,
                "content": content,
                **stop_of(reason, stop, calls=calls, context_full=context_full),
                "usage": usage_of(answer.usage),
            }
        )


async def count_tokens(call: Call) -> Response:
    """Count a prompt's tokens."""
    messages, options = await call.aside(lambda: _read_prompt(call.body))
    await call.fetch_pictures(messages)
    tokens = await tokenize(call, None, messages, options)
    return Response(msgspec.json.encode({"input_tokens": len(tokens.token_ids)}), media_type="application/json")


def _read_prompt(body: bytes) -> tuple[Sequence[Message], TokenizeOptions]:
    request = checked(parse(_COUNT, body))
    return messages_of(request), prompt_options(request)


def _block(run: Run, reason: FinishReason | None) -> dict[str, Any] | None:
    """A block of a message that ended for ``reason``; None for a call not to be made."""
    text, first = run.text, run.first
    if isinstance(first, Reasoning):
        return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
    if isinstance(first, Content):
        return {"type": "text", "text": text}
    if not is_to_be_made(text, reason):
        return None
    arguments = msgspec.Raw(text.encode() if is_whole(text) else b"{}")  # max_tokens cut them off
    return {"type": "tool_use", "id": first.id, "name": first.name, "input": arguments}


def _naming(request: MessageRequest) -> Callable[[str], str]:
    return naming_given(names_given(request) | budget_names(request.thinking), ANTHROPIC.name_of)


MESSAGES = GenerationEndpoint(MessageRequest, _asks, MessageWriter.begin_answer, _naming, ping=PING)
ENDPOINTS = (
    Endpoint("POST", "/v1/messages", MESSAGES.answer, ANTHROPIC),
    Endpoint("POST", "/v1/messages/count_tokens", count_tokens, ANTHROPIC),
)
