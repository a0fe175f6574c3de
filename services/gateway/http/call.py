"""What endpoints receive, a ``Call``, and how they are declared."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
from ringline import AsyncClient, Message, RingError
from starlette.datastructures import Headers
from starlette.responses import Response

from services.gateway.http.api_error import ApiError, invalid
from services.gateway.http.large import SMALL_ENTRIES, LargeBodies, check_values, is_small

_Body = TypeVar("_Body")
_T = TypeVar("_T")
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""A caller's."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-bA-B]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89a-bA-B]..)\\u[dD][c-fC-F]")
_PAIR_BYTES = 12
_WINDOW = 1 << 20
JSON = ("application/json",)


@dataclass(slots=True)
class TokenCount:
    """Tokens of a call's prompts and answers."""

    prompt: int = 0
    output: int = 0


class Pictures(Protocol):
    """Fetches pictures that requests name by URL."""

    async def fill(
        self, messages: Sequence[Message], client: str, hold: Callable[[int], None]
    ) -> Mapping[tuple[int, int], str]:
        """Put them into the messages. Returns the fields of those and other pictures in the request, by message and
        part. Raises ``ApiError``.
        """


@dataclass(slots=True)
class PromptPictures:
    """A prompt's pictures, once it is read."""

    fields: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """In the request, by the numbers of the ring's message and part."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, with its whole body and its caller's session with the processors."""

    body: bytes
    headers: Headers
    client: AsyncClient
    """Sends the caller's token and tenant to processors."""
    request_id: str
    """The caller's ``x-request-id``, or one made here."""
    address: str
    """The client's; empty on a unix socket."""
    large: LargeBodies
    path_params: Mapping[str, str] = field(default_factory=dict)
    """Values in the path of the names in the endpoint's."""
    query: str = ""
    """After the question mark."""
    ring_serves: bool = True
    """Whether any processor has a model to serve."""
    tokens: TokenCount = field(default_factory=TokenCount)
    """For metrics; endpoints add to it."""
    pictures: Pictures | None = None
    prompt_pictures: PromptPictures = field(default_factory=PromptPictures)
    hold: Callable[[int], None] = lambda size: None
    """Counts further bytes that are kept until the answer. Raises ``ApiError`` for too many."""

    async def aside(self, work: Callable[[], _T], entries: int | None = None) -> _T:
        """The result of ``work``; large work waits its turn and runs in a thread.

        ``entries``: the number of answer entries that it processes; None: it processes the body and the prompt.
        """
        body_is_small = entries is None and not self.prompt_pictures.fields and is_small(self.body)
        small = body_is_small if entries is None else entries <= SMALL_ENTRIES
        return work() if small else await self.large.run(self.address, work)

    async def fetch_pictures(self, messages: Sequence[Message] | None) -> None:
        """Put the pictures that URLs name into the prompt's messages. Raises ``ApiError``."""
        if messages is not None and self.pictures is not None:
            self.prompt_pictures.fields = await self.pictures.fill(messages, self.address, self.hold)

    @property
    def traceparent(self) -> str | None:
        """The caller's place in a distributed trace; None if missing or malformed."""
        given = self.headers.get("traceparent")
        return given if given is not None and _TRACEPARENT.fullmatch(given) else None


def parse(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """The body as an object. Raises ``ApiError`` if it is not JSON, is too large, or has a value of a wrong type."""
    check_values(body)
    try:
        return decoder.decode(body.removeprefix(BOM_UTF8))  # some Windows programs write it
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `")  # such as $.messages[0], or: key in $.logit_bias
        param = path.rstrip("`").rpartition("$")[2].lstrip(".") or None
        raise invalid(param, problem if param else f"the body: {problem}", "invalid_field") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"the body is not JSON: {error}"
        if half := _half_pair(body):  # JavaScript writes these for texts cut within a character
            problem = f"the body has half a character, {half[0][:6].decode('latin-1')}: cut texts between characters"
        raise invalid(None, problem, "invalid_json") from None
    except RecursionError:
        raise invalid(None, "the body is nested too deeply: expected less than 1000 levels", "invalid_json") from None


def _half_pair(body: bytes) -> re.Match[bytes] | None:
    """The first half of a character, looked for by windows, between which other threads run."""
    for at in range(0, len(body), _WINDOW) if b"\\u" in body else ():
        if found := _HALF_PAIR.search(body[max(0, at - _PAIR_BYTES) : at + _WINDOW + _PAIR_BYTES]):
            return found
    return None


@contextmanager
def types_checked() -> Iterator[None]:
    """Turn the client library's ``TypeError`` in the block into the request's error."""
    try:
        yield
    except TypeError as error:
        raise invalid(None, str(error), "invalid_field") from None


@dataclass(slots=True)
class AnsweredError(Exception):
    """An error of the ring that the endpoint answers itself."""

    error: RingError
    response: Response


Handler = Callable[[Call], Awaitable[Response]]
"""Answers a call. Raises ``ApiError`` or an error of the ring, but only before sending anything."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API reports a failed request."""

    error: Callable[[ApiError, str], bytes]
    """The body, from an error and the request id."""
    name_of: Callable[[str], str]
    """Maps the ring's field names to the API's."""
    id_headers: tuple[str, ...] = ("x-request-id",)
    """Answer headers that carry the request's id."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    dialect: Dialect
    media_types: tuple[str, ...] = JSON
    """Accepted for POST bodies; the first is the default. Empty: any."""
    asks_ring: bool = True
    """Whether it needs a session with processors; if not, ``Call.client`` carries no token."""
