"""``/v1/responses``: OpenAI's API, as its SDKs, agents and Codex use it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import msgspec
from ringline import Delta, Event, RingError
from starlette.responses import Response

from services.gateway.answer import Answer, Ask
from services.gateway.fields import checked, naming
from services.gateway.http.api_error import ApiError, api_error_from
from services.gateway.http.call import Call, Dialect, Endpoint, parse
from services.gateway.http.event_stream import EventStream
from services.gateway.openai.errors import error_body
from services.gateway.openai.logprobs import TokenNames, loaded_chat_logprobs
from services.gateway.openai.responses.events import Logprobs, ResponseEvents
from services.gateway.openai.responses.request import (
    ResponseRequest,
    all_options,
    functions,
    messages_of,
    wants_logprobs,
)
from services.gateway.token_texts import TokenTexts
from services.gateway.turns import naming_turns

_DECODER = msgspec.json.Decoder(ResponseRequest)


async def create_response(call: Call) -> Response:
    """A response, at once or as events."""
    request, ask = await call.aside(lambda: _read(call.body))
    answer = await Answer.begin(call, [ask], whole=True)
    events = ResponseEvents(call.request_id, _fields(request, answer), functions(request))
    names = None
    if wants_logprobs(request):
        names = TokenNames(await answer.needing(TokenTexts.of_model(call.client, answer.admitted[0].model)))
    if request.stream:
        return EventStream(_stream(answer, events, names))
    async with aclosing(answer):
        async for _, event in answer.events():
            events.add(event, await _logprobs(event, names))
    events.end(answer.usage)
    return Response(msgspec.json.encode(events.response(answer.usage)), media_type="application/json")


def _read(body: bytes) -> tuple[ResponseRequest, Ask]:
    """The request, and what it asks of the ring."""
    request = checked(parse(_DECODER, body))
    return request, Ask(all_options(request), messages=messages_of(request))


async def _stream(answer: Answer, events: ResponseEvents, names: TokenNames | None) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer):
        yield events.begin()
        try:
            async for _, event in answer.events():
                if written := events.add(event, await _logprobs(event, names)):
                    yield written
        except RingError as error:
            yield events.fail(api_error_from(error, _name_of))
        else:
            yield events.end(answer.usage)


async def _logprobs(event: Event, names: TokenNames | None) -> Logprobs:
    if names is None or not isinstance(event, Delta) or event.logprobs is None:
        return ()
    return await loaded_chat_logprobs(names, event)


def _fields(request: ResponseRequest, answer: Answer) -> dict[str, Any]:
    """The fields of a response that say how it was asked for."""
    admitted = answer.admitted[0]
    reasoning, text = request.reasoning, request.text
    return {
        "created_at": int(time.time()),
        "model": admitted.model,
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "temperature": round(admitted.options.get("temperature") or 0.0, 6),
        "top_p": round(admitted.options.get("top_p") or 1.0, 6),
        "top_logprobs": request.top_logprobs or 0,
        "max_output_tokens": request.max_output_tokens,
        "tools": request.tools or [],
        "tool_choice": request.tool_choice or "auto",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "text": {"format": (text and text.format) or {"type": "text"}, "verbosity": text and text.verbosity},
        "truncation": "disabled",
        "service_tier": "default",
        "background": False,
        "store": False,
        "previous_response_id": None,
    }


async def stored_response(_call: Call) -> Response:
    """Nothing is stored."""
    problem = "there is no such response: none is stored"
    raise ApiError(HTTPStatus.NOT_FOUND, problem, "response_id", "response_not_found")


def _error_body(error: ApiError, request_id: str) -> bytes:
    error.message = error.message.replace(" (truncate_prompt_tokens keeps the last ones)", "")  # no field of this API
    return error_body(error, request_id)


_NAMES = {
    "chat": "input",
    "prompt": "input",
    "messages": "input",
    "json_schema": "text.format.schema",
    "json_object": "text.format",
    "logprobs": "top_logprobs",
}
_NAME_OF = naming_turns(naming([ResponseRequest], _NAMES), "input")


def _name_of(field: str) -> str:
    """What this API calls a field of the ring; a tool is no object within another here, as it is in a chat."""
    return _NAME_OF(field).replace(".parameters_json", ".parameters")


_DIALECT = Dialect(_error_body, _name_of)
_STORED = (
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"),
)
ENDPOINTS = (
    Endpoint("POST", "/v1/responses", create_response, _DIALECT),
    *(Endpoint(method, path, stored_response, _DIALECT, asks_ring=False) for method, path in _STORED),
)
