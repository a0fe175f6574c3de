"""What an endpoint answers in place of a result, and how an error of the ring becomes that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import grpc
from ringline.errors import InvalidRequest, Overloaded, RingError

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


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
    more_headers: Mapping[str, str] = field(default_factory=dict)

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
            headers["retry-after"] = str(max(1, round(self.retry_after + 0.499)))
            headers["retry-after-ms"] = str(round(self.retry_after * 1000))
        if self.status is HTTPStatus.GATEWAY_TIMEOUT:
            headers["x-should-retry"] = "false"
        return headers


def invalid(param: str | None, problem: str, code: str | None = None) -> ApiError:
    """The error of a field that cannot be used."""
    return ApiError(HTTPStatus.BAD_REQUEST, problem if param is None else f"{param}: {problem}", param, code)


def api_error_from(error: RingError, name_of: Callable[[str], str]) -> ApiError:
    """The answer for an error of the ring; ``name_of``: what the API calls a field of the ring."""
    status = _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    failed = ApiError(status, str(error), code=None if error.reason is None else error.reason.lower())
    if status is HTTPStatus.UNAUTHORIZED:
        failed.code = "invalid_api_key"
    if isinstance(error, InvalidRequest) and error.field is not None:
        failed.param = name_of(error.field)
        failed.message = failed.message.replace(error.field, failed.param, 1)
    if isinstance(error, Overloaded):
        failed.retry_after = error.retry_after
    return failed
