"""The errors that the library raises, and their construction from gRPC statuses.

RingError
├── InvalidRequest      the request is invalid (names the field)
├── NotFound            no such model
├── FailedPrecondition  the server is not in a state to do this
├── PermissionDenied    the caller is unknown to the server, or not allowed
├── Overloaded          the server has no room (says when to retry)
├── Unavailable         the server cannot be reached or takes no new requests; a retry may help
│   └── Truncated       the stream ended before the request did
├── DeadlineExceeded    the timeout passed
├── Cancelled           the request was cancelled
├── ServerError         the server failed
└── ProtocolError       the server broke the contract

When a generation fails, the error's ``partial`` holds what was delivered before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import grpc
from google.rpc import error_details_pb2, status_pb2

from ringline.outputs import Partial

_DETAILS_KEY = "grpc-status-details-bin"
_LOST_STATUS = "Internal error from Core"
"""grpc.aio replaces the status of a stream that ended during a write with this text."""
_TIMED_OUT = "Deadline Exceeded"
"""gRPC's own text where the server did not answer in time."""
_DOMAIN = "ringline"


class RingError(Exception):
    """Base of the library's errors. Its text is one human-readable sentence."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    """The canonical gRPC code."""
    partial: Partial | None = None
    """What was delivered, if the generation was admitted."""
    reason: str | None = None
    """A name from ``ringline.types.v1.ErrorReason``, without its prefix; None if the server sent none."""


class InvalidRequest(RingError):
    """The request is invalid."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    field: str | None = None
    """The invalid field, if known."""


class NotFound(RingError):
    """No such model."""

    code = grpc.StatusCode.NOT_FOUND


class FailedPrecondition(RingError):
    """The server is not in a state to do this."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class PermissionDenied(RingError):
    """The caller is unknown to the server, or not allowed to do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Overloaded(RingError):
    """The server has no room for the request."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retry_after: float | None = None
    """Seconds after which the server suggests retrying."""


class Unavailable(RingError):
    """The server cannot be reached or takes no new requests."""

    code = grpc.StatusCode.UNAVAILABLE
    unreached: Mapping[str, str] | None = None
    """Set if the client has never reached a server: why each address could not be connected to."""


class Truncated(Unavailable):
    """The stream ended before the request did: the delivered answer is incomplete."""


class DeadlineExceeded(RingError, TimeoutError):
    """The timeout passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(RingError):
    """The request was cancelled."""

    code = grpc.StatusCode.CANCELLED


class ServerError(RingError):
    """The server failed."""

    code = grpc.StatusCode.INTERNAL


class ProtocolError(RingError):
    """The server broke the contract; what was delivered cannot be trusted."""

    code = grpc.StatusCode.INTERNAL


_CLASSES: dict[grpc.StatusCode, type[RingError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ALREADY_EXISTS: FailedPrecondition,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}
_TOO_LARGE = "SERVER: Received message larger than max"
"""gRPC's own text for a message that it refused before the service saw it; comes without details."""
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def invalid(field: str, problem: str) -> InvalidRequest:
    """The error for a field that the client itself finds invalid, before sending anything."""
    error = InvalidRequest(f"{field}: {problem}")
    error.field = field
    return error


def from_status(status: status_pb2.Status) -> RingError:
    """The error for a ``google.rpc.Status``."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    error = _CLASSES.get(code, ServerError)(status.message or code.name)
    error.code = code
    error.reason = _reason(status)
    if isinstance(error, InvalidRequest):
        error.field = _field(status)
    elif isinstance(error, Overloaded):
        error.retry_after = _retry_after(status)
    return error


def from_rpc(failure: grpc.RpcError) -> RingError:
    """The error for a failed call of either ``grpc`` or ``grpc.aio``."""
    if not isinstance(failure, grpc.Call | grpc.aio.AioRpcError):
        return ServerError(str(failure))
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return from_status(status_pb2.Status.FromString(value))
    if failure.details() == _LOST_STATUS:
        return Unavailable("the connection was lost while a request was sent")
    if (failure.details() or "").startswith(_TOO_LARGE):
        size, limit = (*re.findall(r"\d+", failure.details() or ""), "?", "?")[:2]
        error = invalid("message", f"{size} bytes: expected at most {limit}, the server's limit")
        error.reason = "TOO_LARGE"
        return error
    if failure.details() == _TIMED_OUT:
        return DeadlineExceeded("the timeout passed before the server answered")
    code = failure.code()
    return from_status(status_pb2.Status(code=code.value[0], message=failure.details() or ""))


def from_lost_call(failure: grpc.RpcError) -> RingError:
    """Like ``from_rpc``, for a call that this side did not cancel: CANCELLED means a lost server or connection."""
    error = from_rpc(failure)
    return (
        Unavailable(f"the server, or a proxy before it, cancelled the call: {error}")
        if isinstance(error, Cancelled)
        else error
    )


def _field(status: status_pb2.Status) -> str | None:
    violations = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(violations) and violations.field_violations:
            return violations.field_violations[0].field
    return None


def _reason(status: status_pb2.Status) -> str | None:
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            return info.reason
    return None


def _retry_after(status: status_pb2.Status) -> float | None:
    info = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            return info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    return None
