"""Errors as ``google.rpc.Status``, with the details that the contract describes under ErrorReason."""

from __future__ import annotations

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from ringline.errors import Cancelled, InvalidRequest, Overloaded, RingError

from services.gateway.http.api_error import ENDED

_DOMAIN = "ringline"


def status_of(error: RingError) -> status_pb2.Status:
    """The status a processor would send for ``error``, whether it came from one or from the client library."""
    code: int = error.code.value[0]
    status = status_pb2.Status(code=code, message=str(error))
    if isinstance(error, Cancelled):  # not by the caller, which is still there
        status.code, status.message = grpc.StatusCode.UNAVAILABLE.value[0], ENDED
    if error.reason is not None:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN))
    if isinstance(error, InvalidRequest) and error.field is not None:
        description = status.message.removeprefix(f"{error.field}: ")
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=description)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded) and error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status
