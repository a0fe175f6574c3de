"""OpenAI's form of an error."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.gateway.fields import naming
from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Dialect


def error_body(error: ApiError, _request_id: str) -> bytes:
    """The body of a failed request, and the data of an event that says so late."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def openai_dialect(names: Mapping[str, str], *bodies: type[msgspec.Struct]) -> Dialect:
    """OpenAI's errors for an endpoint that takes ``bodies``; ``names``: of further fields of the ring."""
    return Dialect(error_body, naming(bodies, names))


OPENAI = openai_dialect({})
