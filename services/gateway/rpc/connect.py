"""Connect: a unary call is one HTTP request; a stream's messages and its end come in envelopes. JSON or protobuf."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from http import HTTPStatus

import grpc
from google.rpc import status_pb2
from ringline.errors import invalid

from services.gateway.http.api_error import ApiError
from services.gateway.rpc.envelope import enclose

UNARY_MEDIA_TYPES = "application/proto", "application/json"
STREAM_MEDIA_TYPES = "application/connect+proto", "application/connect+json"
TIMEOUT_HEADER, COMPRESSION_HEADER = "connect-timeout-ms", "connect-content-encoding"
_END = 2
_TIMEOUT = re.compile("[0-9]{1,10}")
_CODES = {
    code.value[0]: "canceled" if code is grpc.StatusCode.CANCELLED else code.name.lower() for code in grpc.StatusCode
}
_HTTP_STATUS = {
    "canceled": 499,
    "invalid_argument": 400,
    "failed_precondition": 400,
    "out_of_range": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "aborted": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "unimplemented": 501,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""For unary calls; 500 for the others."""
_CODE_OF_HTTP_STATUS = {
    HTTPStatus.UNAUTHORIZED: "unauthenticated",
    HTTPStatus.FORBIDDEN: "permission_denied",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "unimplemented",
    HTTPStatus.REQUEST_TIMEOUT: "deadline_exceeded",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "resource_exhausted",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unimplemented",
    HTTPStatus.TOO_MANY_REQUESTS: "resource_exhausted",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "deadline_exceeded",
}
"""For requests refused before the call is known; invalid_argument for the others."""


def message_envelope(data: bytes) -> bytes:
    """A message of a stream."""
    return enclose(0, data)


def end_envelope(status: status_pb2.Status) -> bytes:
    """The end of a stream."""
    return enclose(_END, _json({"error": _error(status)} if status.code else {}))


def unary_error(status: status_pb2.Status) -> tuple[int, bytes]:
    """The HTTP status and body of a failed unary call."""
    error = _error(status)
    return _HTTP_STATUS.get(str(error["code"]), 500), _json(error)


def api_error_body(error: ApiError, _request_id: str) -> bytes:
    """The body for a request refused before the call is known."""
    return _json({"code": _CODE_OF_HTTP_STATUS.get(error.status, "invalid_argument"), "message": error.message})


def timeout_of(headers: Mapping[str, str]) -> float | None:
    """Seconds; None without a timeout. Raises InvalidRequest."""
    if (given := headers.get(TIMEOUT_HEADER)) is None:
        return None
    if not _TIMEOUT.fullmatch(given):
        raise invalid(TIMEOUT_HEADER, "expected at most 10 digits")
    return int(given) / 1000


def _error(status: status_pb2.Status) -> dict[str, object]:
    error: dict[str, object] = {"code": _CODES.get(status.code, "unknown"), "message": status.message}
    if status.details:
        error["details"] = [
            {"type": detail.TypeName(), "value": base64.b64encode(detail.value).decode().rstrip("=")}
            for detail in status.details
        ]
    return error


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
