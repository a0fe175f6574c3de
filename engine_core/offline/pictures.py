"""Reads pictures for ``LLM``, as Python programs have them; the model's processor decodes them later.

Anything else raises ``TypeError`` or ``ValueError``, which name the place.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

PICTURE_TYPES = ("image_url", "image", "image_pil")
_ACCEPTED = "bytes, a pathlib.Path, a picture of Pillow, or a data: URL"
_DETAILS = (None, "", "auto", "high", "original")
_KEPT_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
"""Pillow's modes that PNG can hold."""


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture as the file that it is or would be."""

    place: str
    """In the caller's input, such as ``messages[0].content[1]``."""
    data: bytes = field(repr=False)
    mime: str = ""
    """The type that is declared, if any."""


def picture_of_part(part: Mapping[str, Any], place: str) -> PictureFile:
    """The picture of a part of a message, of one of ``PICTURE_TYPES``."""
    kind = part["type"]
    if others := [key for key in part if key not in ("type", kind, "detail", "uuid")]:
        raise ValueError(f"{place} has the key {others[0]!r}; expected 'type' and {kind!r}")
    value, place = part.get(kind), f"{place}.{kind}"
    if kind == "image_url" and isinstance(value, Mapping):
        if value.get("detail") not in _DETAILS:
            raise ValueError(f"{place}.detail is {value['detail']!r}; expected 'auto', or none")
        value, place = value.get("url"), f"{place}.url"
    return read_picture(value, place)


def read_picture(value: object, place: str) -> PictureFile:
    """A picture as bytes, a path, an object of Pillow's, or a ``data:`` URL."""
    if isinstance(value, str):
        return _of_url(value, place)
    if isinstance(value, bytes | bytearray | memoryview):
        return PictureFile(place, bytes(value))
    if isinstance(value, os.PathLike):
        try:
            return PictureFile(place, Path(value).read_bytes())
        except OSError as error:
            raise ValueError(f"{place} is {os.fspath(value)!r}, which cannot be read: {error.strerror}") from None
    if callable(getattr(value, "save", None)) and isinstance(getattr(value, "mode", None), str):
        return PictureFile(place, _as_png(value, place), "image/png")
    kind = "missing" if value is None else f"of type {type(value).__name__}"
    raise TypeError(f"{place} is {kind}; expected {_ACCEPTED}")


def _of_url(url: str, place: str) -> PictureFile:
    head, comma, text = url.partition(",")
    kind, *options = head.split(";")
    if kind[:5].lower() != "data:" or not comma or "base64" not in map(str.lower, options):
        raise ValueError(f"{place} is {url[:40]!r}; expected {_ACCEPTED} in base64. Nothing is fetched")
    try:
        data = binascii.a2b_base64("".join(text.split()), strict_mode=True)
    except ValueError as error:
        raise ValueError(f"{place} is not base64 after the comma ({error})") from None
    return PictureFile(place, data, kind[5:].lower())


def _as_png(picture: Any, place: str) -> bytes:
    buffer = BytesIO()
    try:
        (picture if picture.mode in _KEPT_MODES else picture.convert("RGB")).save(buffer, format="PNG")
    except (OSError, ValueError) as error:
        raise ValueError(f"{place} cannot be written as PNG: {error}") from None
    return buffer.getvalue()
