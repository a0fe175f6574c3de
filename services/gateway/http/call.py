"""One HTTP request, as endpoints see it, and what an endpoint is."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from ringline import AsyncClient, RingError
from starlette.datastructures import Headers
from starlette.responses import Response

from services.gateway.http.api_error import ApiError, invalid
from services.gateway.http.large import SMALL_ENTRIES, LargeBodies, check_values, is_small

_Body = TypeVar("_Body")
_T = TypeVar("_T")
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Of a caller."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-bA-B]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89a-bA-B]..)\\u[dD][c-fC-F]")
JSON = ("application/json",)


@dataclass(slots=True)
class TokenCount:
    """Tokens of a call's prompts and answers."""

    prompt: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its body is read, its caller's session with the processors is found."""

    body: bytes
    headers: Headers
    client: AsyncClient
    """Speaks to processors with the caller's token and tenant."""
    request_id: str
    """The caller's ``x-request-id``, or one made here."""
    address: str
    """The client's; empty on a unix socket."""
    large: LargeBodies
    path_params: Mapping[str, str] = field(default_factory=dict)
    """What stands in the path for the names in the endpoint's."""
    query: str = ""
    """What follows the question mark."""
    tokens: TokenCount = field(default_factory=TokenCount)
    """What the call used, for metrics; endpoints add to it."""

    async def aside(self, work: Callable[[], _T], entries: int | None = None) -> _T:
        """What ``work`` returns or raises; where it is large, it is done in a thread, in its turn.

        ``entries``: how many of the answer it works on; None: it works on the body.
        """
        small = is_small(self.body) if entries is None else entries <= SMALL_ENTRIES
        return work() if small else await self.large.run(self.address, work)

    @property
    def traceparent(self) -> str | None:
        """The caller's place in a distributed trace; None if there is none, or it has not the form of one."""
        given = self.headers.get("traceparent")
        return given if given is not None and _TRACEPARENT.fullmatch(given) else None


def parse(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """The body as an object. Raises ``ApiError`` for what is no JSON, is too much, or has a value of a wrong type."""
    check_values(body)
    try:
        return decoder.decode(body.removeprefix(BOM_UTF8))  # which some of Windows' programs write before any text
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `")  # such as $.messages[0], or: key in $.logit_bias
        param = path.rstrip("`").rpartition("$")[2].lstrip(".") or None
        raise invalid(param, problem if param else f"the body: {problem}", "invalid_field") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"the body is not JSON: {error}"
        if half := _HALF_PAIR.search(body):  # as JavaScript writes a text that was cut within a character
            problem = f"the body has half a character, {half[0][:6].decode('latin-1')}: cut texts between characters"
        raise invalid(None, problem, "invalid_json") from None
    except RecursionError:
        raise invalid(None, "the body is nested too deeply: expected less than 1000 levels", "invalid_json") from None


@contextmanager
def types_checked() -> Iterator[None]:
    """While the block runs, the client library's error for a value of a wrong type is the request's fault."""
    try:
        yield
    except TypeError as error:
        raise invalid(None, str(error), "invalid_field") from None


@dataclass(slots=True)
class AnsweredError(Exception):
    """An error of the ring, to which the endpoint has an answer of its own."""

    error: RingError
    response: Response


Handler = Callable[[Call], Awaitable[Response]]
"""Answers a call. Raises ``ApiError``, or an error of the ring; then nothing of the response may have been sent."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API says that a request failed."""

    error: Callable[[ApiError, str], bytes]
    """The body for an error and the request's id."""
    name_of: Callable[[str], str]
    """What the API calls a field of the ring."""
    id_headers: tuple[str, ...] = ("x-request-id",)
    """Headers of every answer that have the request's id."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    dialect: Dialect
    media_types: tuple[str, ...] = JSON
    """Of bodies that a POST may have; the first where none is named. Empty: any."""
    asks_ring: bool = True
    """Whether it needs a session with processors; without, ``Call.client`` carries no token."""
