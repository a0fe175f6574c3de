"""Anthropic's form of errors."""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec

from services.gateway.anthropic.request import MessageRequest
from services.gateway.fields import PARSERS, naming
from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Dialect
from services.gateway.turns import naming_turns

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}

_TOO_LONG = re.compile(r"(\d+) tokens are too long: expected at most (\d+)")
"""How a processor refuses a prompt that leaves no room in the context."""
_TOO_LARGE = re.compile(r"((?:more than )?\d+ bytes: expected at most \d+, for a context of \d+ tokens)")
"""How it refuses one too long to tokenize."""


def error_body(error: ApiError, request_id: str) -> bytes:
    """The body of a failed request, and the data of a late error event."""
    other = "api_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    message = error.message
    if too_long := _TOO_LONG.search(message):  # agents that read this compact the conversation
        message = f"prompt is too long: {too_long[1]} tokens > {too_long[2]} maximum"
    elif too_large := _TOO_LARGE.search(message):
        message = f"prompt is too long: {too_large[1]}"
    body = {"type": _TYPES.get(error.status, other), "message": message}
    return msgspec.json.encode({"type": "error", "error": body, "request_id": request_id})


_NAME_OF = naming_turns(
    naming([MessageRequest], {"json_schema": "output_config.format.schema", "chat": "messages"}), "messages"
)
_IN_TOOLS = re.compile(r"^(tools\[\d+\])\.parameters(_json)?\b")


def _name_of(field: str) -> str:
    """Anthropic's name for a field of the ring."""
    return PARSERS.get(field) or _IN_TOOLS.sub(r"\1.input_schema", _NAME_OF(field))


ANTHROPIC = Dialect(
    error_body,
    _name_of,
    id_headers=("x-request-id", "request-id"),
)
