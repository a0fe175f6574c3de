"""OpenAI's form of an error."""

from __future__ import annotations

import msgspec

from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Dialect

NAMES: dict[str, str] = {}
"""What OpenAI's API calls fields of the ring."""


def error_body(error: ApiError, _request_id: str) -> bytes:
    """The body of a failed request, and the data of an event that says so late."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


OPENAI = Dialect(error_body, NAMES)
