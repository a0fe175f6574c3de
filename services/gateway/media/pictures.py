"""Pictures in requests: a ``data:`` URL becomes bytes here, another URL is left to ``fetch``.

Each knows its field in the request: the ring counts messages and parts otherwise than some APIs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ringline import InvalidRequest, Message
from ringline.content_parts import decode_base64, read_data_url

from services.gateway.http.api_error import invalid, shown

_BEST = ("auto", "high", "original")
"""Values of ``detail`` for the picture as the model sees it best, as it always does."""


@dataclass(frozen=True, slots=True)
class RemotePicture:
    """In place of a part: a picture that is to be fetched."""

    url: str
    path: str
    """Its field in the request, for errors."""


class Picture(dict[str, Any]):
    """A picture as the client library takes it."""

    def __init__(self, data: bytes, path: str, mime_type: str | None = None) -> None:
        """``path``: its field in the request, for errors."""
        super().__init__(type="image", image=data, mime_type=mime_type or None)
        self.path = path


Piece = str | RemotePicture | Picture
"""A text or a picture of a message."""
_IN_RING = re.compile(r"(?:chat\.)?messages\[(\d+)\]\.content(?:_parts)?\[(\d+)\]")
"""Begins the ring's name, and the client library's, of a part's fields."""


def picture_of_url(url: str | None, path: str) -> Piece:
    """The picture that a URL holds or names. Raises ``ApiError``."""
    if not url:
        raise invalid(path, "missing: expected a data: URL with a picture in base64")
    if url[:8].lower().startswith(("http://", "https://")):
        return RemotePicture(url, path)
    try:
        data, mime_type = read_data_url(url)
    except InvalidRequest as error:
        raise invalid(path, str(error).partition(": ")[2]) from None
    return Picture(data, path, mime_type)


def picture_of_base64(text: str | None, mime_type: str | None, path: str) -> Piece:
    """The picture that a text holds in base64. Raises ``ApiError``."""
    if not text:
        raise invalid(path, "missing: expected a picture in base64")
    try:
        return Picture(decode_base64(text), path, mime_type)
    except ValueError as error:
        raise invalid(path, f"not base64 ({error}): expected a picture in base64") from None


def check_detail(detail: str | None, path: str) -> None:
    """Raise ``ApiError`` for a ``detail`` that would change what the model sees."""
    if detail and detail not in _BEST:
        problem = f"not supported: {shown(detail)}; a model sees pictures as well as it can: send a smaller picture"
        raise invalid(path, problem, code="unsupported_parameter")


def content_of(pieces: Sequence[Piece], joint: str = "") -> Any:
    """A message's content: one text if there is no picture. ``joint``: between texts that follow each other."""
    if all(isinstance(piece, str) for piece in pieces):
        return joint.join(cast(Sequence[str], pieces))
    if not joint:
        return list(pieces)
    content: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and content and isinstance(last := content[-1], str):
            content[-1] = f"{last}{joint}{piece}"
        else:
            content.append(piece)
    return content


def remote_pictures(messages: Iterable[Message]) -> Iterator[tuple[list[Any], int, RemotePicture]]:
    """The pictures to fetch: each with its message's content and its place there."""
    for message in messages:
        if isinstance(content := message.get("content"), list):
            for at, piece in enumerate(content):
                if isinstance(piece, RemotePicture):
                    yield content, at, piece


def fields_of(messages: Sequence[Message]) -> Mapping[tuple[int, int], str]:
    """The fields of all pictures in the request, by the numbers of their message and part."""
    return {
        (number, at): piece.path
        for number, message in enumerate(messages)
        if isinstance(content := message.get("content"), list)
        for at, piece in enumerate(content)
        if isinstance(piece, Picture)
    }


def naming_pictures(fields: Mapping[tuple[int, int], str], name_of: Callable[[str], str]) -> Callable[[str], str]:
    """``name_of``, but for what the ring says of pictures; ``fields``: see ``fields_of``."""

    def name_of_picture(field: str) -> str:
        found = _IN_RING.match(field)
        name = None if found is None else fields.get((int(found[1]), int(found[2])))
        return name_of(field) if name is None else name

    return name_of_picture if fields else name_of
