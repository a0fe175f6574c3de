"""GET ``/``: the chat page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from http import HTTPStatus
from importlib.resources import files

from starlette.responses import Response

from services.common.security.page_policy import page_headers
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI

_HTML = files(__package__).joinpath("index.html").read_text(encoding="utf-8")
_ETAG = f'"{hashlib.sha256(_HTML.encode()).hexdigest()[:32]}"'
_HEADERS = {
    **page_headers(_HTML),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "ETag": _ETAG,
}


async def page(call: Call) -> Response:
    """The page, or 304 for a browser that has it."""
    if _ETAG in call.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_HEADERS)
    return Response(_HTML, headers=_HEADERS, media_type="text/html")


ENDPOINTS: Sequence[Endpoint] = (Endpoint("GET", "/", page, OPENAI, asks_ring=False),)
