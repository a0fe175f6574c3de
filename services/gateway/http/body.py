"""Reads request bodies within limits of size and time; checks their headers and origin."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Receive

from services.gateway.http.api_error import ApiError
from services.gateway.http.disconnect import Disconnected
from services.gateway.http.load import Load, Request

BODY_SECONDS = 30.0
"""For a body, plus a second per ``_BYTES_PER_SECOND``."""
_BYTES_PER_SECOND = 16 << 10
_JOINED_INLINE = 1 << 20
"""Bodies up to this size are put together on the event loop: it takes less time than a thread."""


def check_body_headers(headers: Headers, media_types: tuple[str, ...], max_bytes: int) -> None:
    """Raise ``ApiError`` for an unusable body before it is sent."""
    if (length := headers.get("content-length")) is not None and int(length) > max_bytes:
        raise _too_large(max_bytes)
    if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        problem = "content-encoding: compressed bodies are not read: send it as it is"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, problem, code="unsupported_media_type")
    given = headers.get("content-type", media_types[0] if media_types else "")
    if media_types and given.partition(";")[0].strip().lower() not in media_types:
        problem = f"content-type: expected {' or '.join(media_types)}"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, problem, code="unsupported_media_type")


async def read_body(receive: Receive, max_bytes: int, load: Load, request: Request) -> bytes:
    """The whole body. Raises ``ApiError`` if it is too large or too slow, ``Disconnected`` if the client goes away."""
    parts: list[bytes] = []
    size, more = 0, True
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout_at(begun + BODY_SECONDS) as timeout:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part, more = message.get("body", b""), message.get("more_body", False)
                if size + len(part) > max_bytes:
                    raise _too_large(max_bytes)
                load.hold(request, len(part))
                parts.append(part)
                size += len(part)
                if more:
                    timeout.reschedule(begun + BODY_SECONDS + size / _BYTES_PER_SECOND)
    except TimeoutError:
        problem = f"the body was not complete within {BODY_SECONDS + size / _BYTES_PER_SECOND:.0f} s"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, problem, code="timeout") from None
    request.receiving = False
    if size <= _JOINED_INLINE:
        return b"".join(parts)
    return await asyncio.to_thread(b"".join, parts)


def check_origin(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Raise ``ApiError`` for requests that other origins' pages make a browser send.

    The browser may be behind a firewall that keeps attackers out. Other clients send no origin.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    site = headers.get("sec-fetch-site")
    own = origin.partition("://")[2] in (headers.get("host"), headers.get("x-forwarded-host"))
    if (site in ("same-origin", "none") or (site is None and own)) and _is_no_stranger(origin):
        return
    problem = f"pages of {origin[:200]!r} may not call this gateway: it must be among --cors-origins"
    raise ApiError(HTTPStatus.FORBIDDEN, problem, code="origin_not_allowed")


def _is_no_stranger(origin: str) -> bool:
    """Whether an origin that seems to be this gateway's proves it.

    Over plain HTTP a name proves nothing: its owner may point it at this machine once the page is loaded (DNS
    rebinding). Addresses, localhost and names with a certificate cannot be moved.
    """
    try:
        url = urlsplit(origin)
        host = url.hostname or ""
        if url.scheme == "https" or host == "localhost" or host.endswith(".localhost"):
            return True
        ip_address(host)
    except ValueError:
        return False
    return True


def _too_large(max_bytes: int) -> ApiError:
    more = "--max-message-bytes, or of pictures --max-media-bytes"
    problem = f"the body has more than {max_bytes} bytes, the limit: send less, or raise {more}"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem, code="too_large")
