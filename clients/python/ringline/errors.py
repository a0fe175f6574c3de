"""Every error the library raises on purpose, and how a status of the contract becomes one.

RingError
├── InvalidRequest      the request cannot be taken as it is (names the field)
├── NotFound            no such model
├── FailedPrecondition  the server is not in a state to do this
├── PermissionDenied    who asks is unknown, or may not
├── Overloaded          too much is asked of the server (says when to come again)
├── Unavailable         the server cannot be reached or takes nothing new; asking again later may help
│   └── Truncated       the stream ended before the request did
├── DeadlineExceeded    the time given had passed
├── Cancelled           it was ended by a cancel
├── ServerError         the server failed
└── ProtocolError       the server said what the contract forbids

What had been delivered when a generation failed is in the error's ``partial``.
"""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2

from ringline.delivered import Partial

_DETAILS_KEY = "grpc-status-details-bin"
_LOST_STATUS = "Internal error from Core"
"""With this grpc.aio replaces the true status of a stream that ended while it was written to."""
_DOMAIN = "ringline"


class RingError(Exception):
    """Base of everything below; its text is one sentence fit to show a person."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    """The canonical code it stands for."""
    partial: Partial | None = None
    """For a generation that was admitted: what had been delivered."""
    reason: str | None = None
    """Why, for programs: a name of ``ringline.types.v1.ErrorReason`` without its prefix, as far as the server said."""


class InvalidRequest(RingError):
    """The request cannot be taken as it is."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    field: str | None = None
    """The field that is wrong, when it is known."""


class NotFound(RingError):
    """No such model."""

    code = grpc.StatusCode.NOT_FOUND


class FailedPrecondition(RingError):
    """The server is not in a state to do this."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class PermissionDenied(RingError):
    """Who asks is unknown to the server, or may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Overloaded(RingError):
    """Too much is asked of the server."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retry_after: float | None = None
    """Seconds after which the server suggests to come again."""


class Unavailable(RingError):
    """The server cannot be reached or takes nothing new."""

    code = grpc.StatusCode.UNAVAILABLE


class Truncated(Unavailable):
    """The stream ended before the request did: what was delivered is not the whole answer."""


class DeadlineExceeded(RingError, TimeoutError):
    """The time given had passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(RingError):
    """It was ended by a cancel."""

    code = grpc.StatusCode.CANCELLED


class ServerError(RingError):
    """The server failed."""

    code = grpc.StatusCode.INTERNAL


class ProtocolError(RingError):
    """The server said what the contract forbids; what was delivered cannot be trusted."""

    code = grpc.StatusCode.INTERNAL


_CLASSES: dict[grpc.StatusCode, type[RingError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}
_TOO_LARGE = "SERVER: Received message larger than max"
"""gRPC's own words, without details, for a message that it did not let the service see."""
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def invalid(field: str, problem: str) -> InvalidRequest:
    """The error of one field, found before anything was sent."""
    error = InvalidRequest(f"{field}: {problem}")
    error.field = field
    return error


def from_status(status: status_pb2.Status) -> RingError:
    """The error that a ``google.rpc.Status`` stands for."""
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
    """The error that ended a call; both kinds of grpc channels raise what this reads."""
    if not isinstance(failure, grpc.Call | grpc.aio.AioRpcError):
        return ServerError(str(failure))
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return from_status(status_pb2.Status.FromString(value))
    if failure.details() == _LOST_STATUS:
        return Unavailable("the stream ended while it was written to")
    if (failure.details() or "").startswith(_TOO_LARGE):
        error = invalid("message", f"the server takes no message as large as this one ({failure.details()})")
        error.reason = "TOO_LARGE"
        return error
    code = failure.code()
    return from_status(status_pb2.Status(code=code.value[0], message=failure.details() or ""))


def from_lost_call(failure: grpc.RpcError) -> RingError:
    """As ``from_rpc``, of a call that nobody here cancelled: if it was, its server or connection went."""
    error = from_rpc(failure)
    return Unavailable(f"the call was cancelled at the other end: {error}") if isinstance(error, Cancelled) else error


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
