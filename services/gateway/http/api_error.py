"""What an endpoint answers in place of a result, and how an error of the ring becomes that.

The table in ``docs/openai.md`` says the same for people; a test compares.
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
    grpc.StatusCode.CANCELLED: HTTPStatus.SERVICE_UNAVAILABLE,  # by this gateway, because it ends
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
_STATUS_OF_REASON = {
    "TOO_LARGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "VERSION_MISMATCH": HTTPStatus.BAD_GATEWAY,  # the caller has no part in it
}
"""Where the reason says more than the code."""
_CODES = {"UNAUTHENTICATED": "invalid_api_key", "RATE_LIMIT": "rate_limit_exceeded", "DEADLINE": "timeout"}
"""OpenAI's names of reasons; the others are the ring's."""
_CODES_WITHOUT_REASON = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_field",
    grpc.StatusCode.UNAVAILABLE: "not_ready",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overload",
    grpc.StatusCode.UNIMPLEMENTED: "unsupported",
}
"""Where the client library or gRPC itself failed; the others are called ``internal``."""
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
_INVALID_FIELD = "invalid_field"
"""The ring's reason for a field that it refuses, for those that are refused on the way there, too."""
ENDED = "the gateway ended while it was answering: send the request again"
"""In place of what the client library says of itself when it is closed."""
_FINAL = frozenset({"POISON", "VERSION_MISMATCH"})
"""Reasons of server errors that a retry would meet again."""
_RETRY_SECONDS = 1.0
"""Where a retry helps, and the ring does not say when."""
_TOO_LONG = re.compile(
    r"tokens are too long: expected at most (\d+)|expected at most \d+, for a context of (\d+) tokens"
)
"""How a processor says that a prompt is too long: the most tokens of a prompt, or the whole context."""


@dataclass(slots=True)
class ApiError(Exception):
    """The answer to a request that failed."""

    status: HTTPStatus
    message: str
    param: str | None = None
    """The field that is to blame, as the API calls it."""
    code: str | None = None
    retry_after: float | None = None
    """Seconds."""
    final: bool = False
    """Whether a retry is of no use, although the status is one that clients retry."""
    more_headers: Mapping[str, str] = field(default_factory=dict)
    ring_error: RingError | None = None
    """Of which it is made, if it is."""

    @property
    def type(self) -> str:
        """OpenAI's type."""
        server = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return _TYPES.get(self.status, "server_error" if server else "invalid_request_error")

    @property
    def headers(self) -> dict[str, str]:
        """What clients that retry go by."""
        headers = dict(self.more_headers)
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
            headers["retry-after-ms"] = str(math.ceil(self.retry_after * 1000))
        if self.final:
            headers["x-should-retry"] = "false"
        return headers


def shown(value: object) -> str:
    """A value of a request in an error: as Python writes it, shortened."""
    return repr(value[:80] if isinstance(value, str) else str(value)[:80])


def invalid(param: str | None, problem: str, code: str | None = None) -> ApiError:
    """The error of a field that cannot be used, or of a request as a whole."""
    if param is None:
        return ApiError(HTTPStatus.BAD_REQUEST, problem, code=code)
    return ApiError(HTTPStatus.BAD_REQUEST, f"{param}: {problem}", param, code or _INVALID_FIELD)


def api_error_from(error: RingError, name_of: Callable[[str], str]) -> ApiError:
    """The answer for an error of the ring; ``name_of``: what the API calls a field of the ring."""
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
    if isinstance(error, InvalidRequest) and error.field == "message":  # gRPC's; here it is no field
        failed.message = failed.message.replace("message", "the request", 1)
    elif isinstance(error, InvalidRequest) and error.field is not None:
        if not reason:  # from the client library
            failed.code = _INVALID_FIELD
        failed.param = name_of(error.field)
        failed.message = failed.message.replace(error.field, failed.param, 1)
    if isinstance(error, InvalidRequest) and (too_long := _TOO_LONG.search(failed.message)):
        context = int(too_long[1]) + 1 if too_long[1] else int(too_long[2])
        failed.status, failed.code = HTTPStatus.BAD_REQUEST, "context_length_exceeded"
        failed.message += f". This model's maximum context length is {context} tokens."  # clients look for that
    if error.code is grpc.StatusCode.NOT_FOUND and reason in ("", "MODEL_NOT_FOUND"):
        failed.code, failed.param = "model_not_found", "model"
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        failed.retry_after = (isinstance(error, Overloaded) and error.retry_after) or _RETRY_SECONDS
    return failed
