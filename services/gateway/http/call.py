"""One HTTP request, as endpoints see it, and what an endpoint is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from ringline import AsyncClient
from starlette.datastructures import Headers
from starlette.responses import Response

from services.gateway.http.api_error import ApiError, invalid

_Body = TypeVar("_Body")


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its body is read, its caller's session with the processors is found."""

    body: bytes
    headers: Headers
    client: AsyncClient
    """Speaks to processors with the caller's token and tenant."""
    request_id: str
    """The caller's ``x-request-id``, or one made here."""
    path_params: Mapping[str, str]
    """What the parts in braces of the endpoint's path are in this call."""

    @property
    def traceparent(self) -> str | None:
        """The caller's place in a distributed trace."""
        return self.headers.get("traceparent")


def parse(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """The body as an object. Raises ``ApiError`` for what is no JSON, or has a value of a wrong type."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise invalid(path.rstrip("`").lstrip(".") or None, problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(None, f"the body is not JSON: {error}") from None


Handler = Callable[[Call], Awaitable[Response]]
"""Answers a call. Raises ``ApiError``, or an error of the ring; then nothing of the response may have been sent."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API says that a request failed."""

    error: Callable[[ApiError, str], bytes]
    """The body for an error and the request's id."""
    name_of: Callable[[str], str]
    """What the API calls a field of the ring."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    dialect: Dialect
