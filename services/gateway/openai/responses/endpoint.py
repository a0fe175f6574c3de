"""``/v1/responses`` and ``/v1/responses/input_tokens``: OpenAI's API, as its SDKs, agents and Codex use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from ringline import Delta, Event, Message, Usage
from ringline.options import TokenizeOptions
from starlette.responses import Response

from services.gateway.answer import Answer, Ask, tokenize
from services.gateway.fields import checked, names_given, naming, naming_given
from services.gateway.generation import GenerationEndpoint, Writer
from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Call, Dialect, Endpoint, parse
from services.gateway.model_names import names_of_lookup
from services.gateway.openai.errors import error_body
from services.gateway.openai.logprobs import TokenNames, loaded_chat_logprobs
from services.gateway.openai.responses.events import Logprobs, ResponseEvents
from services.gateway.openai.responses.request import (
    ResponseRequest,
    all_options,
    functions,
    messages_of,
    prompt_options,
    wants_logprobs,
)
from services.gateway.other_paths import path_advice
from services.gateway.other_servers import budget_names
from services.gateway.token_texts import TokenTexts
from services.gateway.turns import naming_turns

_COUNT = msgspec.json.Decoder(ResponseRequest)


def _asks(request: ResponseRequest) -> Sequence[Ask]:
    return [Ask(all_options(request), messages=messages_of(request))]


class ResponseWriter(Writer):
    """Writes a response; it also ends a stream."""

    def __init__(self, events: ResponseEvents, names: TokenNames | None) -> None:
        """``names`` of tokens, if the response has log probabilities."""
        self._events = events
        self._names = names

    @classmethod
    async def begin_answer(
        cls, call: Call, request: ResponseRequest, _asks: Sequence[Ask], answer: Answer
    ) -> ResponseWriter:
        names = None
        if wants_logprobs(request):
            names = TokenNames(await TokenTexts.of_model(call.client, *names_of_lookup(answer.admitted[0])))
        return cls(ResponseEvents(call.request_id, _fields(request, answer), functions(request)), names)

    def begin(self) -> bytes:
        return self._events.begin()

    async def add(self, ask: int, event: Event) -> bytes:
        logprobs: Logprobs = ()
        if self._names is not None and isinstance(event, Delta) and event.logprobs is not None:
            logprobs = await loaded_chat_logprobs(self._names, event)
        return self._events.add(event, logprobs)

    def end(self, usage: Usage) -> bytes:
        return self._events.end(usage)

    def fail(self, error: ApiError) -> bytes:
        return self._events.fail(error)

    async def whole(self, answer: Answer) -> bytes:
        async for ask, event in answer.events():
            await self.add(ask, event)
        self._events.end(answer.usage)
        return msgspec.json.encode(self._events.response(answer.usage))


def _fields(request: ResponseRequest, answer: Answer) -> dict[str, Any]:
    """The response's fields that repeat the request's."""
    admitted = answer.admitted[0]
    reasoning, text = request.reasoning, request.text
    return {
        "created_at": int(time.time()),
        "model": answer.model,
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


async def count_input_tokens(call: Call) -> Response:
    """Count the tokens that a response's prompt would have."""
    messages, options = await call.aside(lambda: _read_prompt(call.body))
    await call.fetch_pictures(messages)
    tokens = await tokenize(call, None, messages, options)
    body = {"object": "response.input_tokens", "input_tokens": len(tokens.token_ids)}
    return Response(msgspec.json.encode(body), media_type="application/json")


def _read_prompt(body: bytes) -> tuple[Sequence[Message], TokenizeOptions]:
    request = checked(parse(_COUNT, body))
    return messages_of(request), prompt_options(request)


async def no_such_path(call: Call) -> Response:
    """Such as ``/v1/responses/compact``, which would else be taken for a response's id."""
    path = f"/v1/responses/{call.path_params['response_id'][:200]}"
    raise ApiError(HTTPStatus.NOT_FOUND, f"there is no POST {path!r} here; {path_advice(path)}", code="not_found")


async def stored_response(_call: Call) -> Response:
    """Nothing is stored."""
    problem = "there is no such response: none is stored"
    raise ApiError(HTTPStatus.NOT_FOUND, problem, "response_id", "response_not_found")


def _error_body(error: ApiError, request_id: str) -> bytes:
    error.message = error.message.replace(" (truncate_prompt_tokens keeps the last ones)", "")  # not in this API
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
    """The API's name for a field of the ring; tools are flat, unlike in chats."""
    return _NAME_OF(field).replace(".parameters_json", ".parameters")


def _naming(request: ResponseRequest) -> Callable[[str], str]:
    return naming_given(names_given(request) | budget_names(request.thinking), _name_of)


RESPONSES = GenerationEndpoint(ResponseRequest, _asks, ResponseWriter.begin_answer, _naming, is_kept=lambda _: True)
_DIALECT = Dialect(_error_body, _name_of)
_STORED = (
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"),
)
ENDPOINTS = (
    Endpoint("POST", "/v1/responses", RESPONSES.answer, _DIALECT),
    Endpoint("POST", "/v1/responses/input_tokens", count_input_tokens, _DIALECT),
    Endpoint("POST", "/v1/responses/{response_id}", no_such_path, _DIALECT, asks_ring=False),
    *(Endpoint(method, path, stored_response, _DIALECT, asks_ring=False) for method, path in _STORED),
)
