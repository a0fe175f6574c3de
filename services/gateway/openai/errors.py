"""OpenAI's form of errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from services.gateway.fields import naming
from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Dialect


def error_body(error: ApiError, _request_id: str) -> bytes:
    """The body of a failed request, and the data of a late error event."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


_IN_FUNCTIONS = re.compile(
    r"(tools\[\d+\]|\.tool_calls\[\d+\])\.(name|description|parameters|arguments|strict)(_json)?\b"
)


def openai_naming(names: Mapping[str, str], *bodies: type[msgspec.Struct]) -> Callable[[str], str]:
    """OpenAI's names for the ring's fields: see ``naming``. Tools and calls nest theirs in a function."""
    name_of = naming(bodies, names)

    def name_in_request(field: str) -> str:
        return _IN_FUNCTIONS.sub(r"\1.function.\2", name_of(field)).replace(".content_parts[", ".content[")

    return name_in_request


def openai_dialect(names: Mapping[str, str], *bodies: type[msgspec.Struct]) -> Dialect:
    """OpenAI's errors for an endpoint that takes ``bodies``; ``names``: further field names."""
    return Dialect(error_body, openai_naming(names, *bodies))


OPENAI = openai_dialect({})
