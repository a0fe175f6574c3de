"""HTTP errors of endpoints, and their mapping from the ring's errors.

A test compares the table in ``docs/reference/openai.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import grpc
from ringline.connect_errors import CONNECT_ADVICE
from ringline.errors import InvalidRequest, Overloaded, RingError

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.ABORTED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.CANCELLED: HTTPStatus.SERVICE_UNAVAILABLE,  # by this gateway, as it ends
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
_STATUS_OF_REASON = {
    "TOO_LARGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "MEDIA_MISSING": HTTPStatus.BAD_GATEWAY,  # not the caller's fault, as the next
    "VERSION_MISMATCH": HTTPStatus.BAD_GATEWAY,
    "ADAPTER_EXISTS": HTTPStatus.BAD_REQUEST,  # as in vLLM
}
"""Reasons that override the code's status."""
_CODES = {"UNAUTHENTICATED": "invalid_api_key", "RATE_LIMIT": "rate_limit_exceeded", "DEADLINE": "timeout"}
"""OpenAI's names for reasons; others keep the ring's."""
_CODES_WITHOUT_REASON = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_field",
    grpc.StatusCode.UNAVAILABLE: "not_ready",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overload",
    grpc.StatusCode.UNIMPLEMENTED: "unsupported",
}
"""For failures of the client library or gRPC itself; ``internal`` for the others."""
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
_INVALID_FIELD = "invalid_field"
"""The ring's reason for a refused field; the gateway's and client library's, too."""
ENDED = "the gateway ended while it was answering: send the request again"
"""Replaces the client library's message about being closed."""
_FINAL = frozenset({"POISON", "VERSION_MISMATCH"})
"""Reasons of server errors that a retry would repeat."""
_REFUSED_CALLERS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""What a retry would repeat, although some agents try for minutes, silently."""
_RETRY_SECONDS = 1.0
"""Where a retry helps but the ring names no delay."""
_TRUNCATION = "options.truncation"
"""The ring's field that cuts long inputs, as messages name it."""
_TOO_LONG = re.compile(
    rf"tokens are too long: expected at most (?:(\d+) \({_TRUNCATION}|(\d+))"
    r"|expected at most \d+, for a context of (\d+) tokens"
)
"""A processor's message about too long a prompt: names the longest input, the longest prompt, or the context, in
tokens.
"""
_CALLS = {
    "(Generate, Session)": "(/v1/chat/completions, /v1/completions)",
    "(Embed, Score)": "(/v1/embeddings, /score)",
    "(Embed)": "(/v1/embeddings)",
    "(Score)": "(/rerank, /score)",
    "(Classify)": "(/classify)",
}
"""What a processor says that a model is for, in paths."""


@dataclass(slots=True)
class ApiError(Exception):
    """The answer to a failed request."""

    status: HTTPStatus
    message: str
    param: str | None = None
    """The field at fault, by its API name."""
    code: str | None = None
    retry_after: float | None = None
    """Seconds."""
    final: bool = False
    """Whether retries are useless although clients retry this status."""
    more_headers: Mapping[str, str] = field(default_factory=dict)
    ring_error: RingError | None = None
    """The ring's error that caused it, if any."""

    @property
    def type(self) -> str:
        """OpenAI's type."""
        server = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return _TYPES.get(self.status, "server_error" if server else "invalid_request_error")

    @property
    def headers(self) -> dict[str, str]:
        """``more_headers`` and retry hints."""
        headers = dict(self.more_headers)
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
            headers["retry-after-ms"] = str(math.ceil(self.retry_after * 1000))
        if self.final or self.status in _REFUSED_CALLERS:
            headers["x-should-retry"] = "false"
        return headers


def shown(value: object) -> str:
    """A request's value for an error message: its ``repr``, shortened."""
    return repr(value[:80] if isinstance(value, str) else str(value)[:80])


def invalid(param: str | None, problem: str, code: str | None = None) -> ApiError:
    """The error for an unusable field, or for the whole request."""
    if param is None:
        return ApiError(HTTPStatus.BAD_REQUEST, problem, code=code)
    return ApiError(HTTPStatus.BAD_REQUEST, f"{param}: {problem}", param, code or _INVALID_FIELD)


def api_error_from(error: RingError, name_of: Callable[[str], str]) -> ApiError:
    """Map an error of the ring; ``name_of`` maps the ring's field names to the API's."""
    reason = error.reason or ""
    status = _STATUS_OF_REASON.get(reason) or _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    code = _CODES.get(reason, reason.lower()) or _CODES_WITHOUT_REASON.get(error.code, "internal")
    failed = ApiError(status, str(error).removesuffix(f"; {CONNECT_ADVICE}"), code=code)
    failed.ring_error = error
    if error.code is grpc.StatusCode.CANCELLED and not reason:  # by the client library
        failed.message = ENDED
    failed.final = reason in _FINAL or status in (HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.NOT_IMPLEMENTED)
    if status is HTTPStatus.UNAUTHORIZED:
        failed.code = _CODES["UNAUTHENTICATED"]
        failed.more_headers = {"www-authenticate": "Bearer"}
    if isinstance(error, InvalidRequest) and error.field == "message":  # gRPC's name; not a field here
        failed.message = failed.message.replace("message", "the request", 1)
    elif isinstance(error, InvalidRequest) and error.field is not None:
        if not reason:  # from the client library
            failed.code = _INVALID_FIELD
        failed.param = name_of(error.field)
        failed.message = failed.message.replace(error.field, failed.param, 1)
    if isinstance(error, InvalidRequest) and (too_long := _TOO_LONG.search(failed.message)):
        longest, prompt, context = too_long.groups()
        context = longest or context or int(prompt) + 1
        failed.status, failed.code = HTTPStatus.BAD_REQUEST, "context_length_exceeded"
        failed.message = failed.message.replace(_TRUNCATION, name_of(_TRUNCATION))
        failed.message += f". This model's maximum context length is {context} tokens."  # clients search for it
    if error.code is grpc.StatusCode.FAILED_PRECONDITION and failed.message.startswith("model: "):
        failed.param = "model"
        for calls, paths in _CALLS.items():
            failed.message = failed.message.replace(calls, paths)
    if error.code is grpc.StatusCode.NOT_FOUND and reason in ("", "MODEL_NOT_FOUND"):
        failed.code, failed.param = "model_not_found", "model"
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        failed.retry_after = (isinstance(error, Overloaded) and error.retry_after) or _RETRY_SECONDS
    return failed
