"""The parts of a message's content: texts, and pictures as Python programs have them."""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from ringline.errors import InvalidRequest, invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.proto_fields import assign

MAX_PICTURE_FILE_BYTES = 256 << 20
"""Of a file that is read at all; how many bytes a picture may have, the server says."""
_KINDS = "text, image and image_url"
_PICTURES = "bytes, a pathlib.Path, a picture of Pillow, or a data: URL"
_DETAILS = (None, "", "auto", "high", "original")
"""Values of ``detail`` that ask for the picture as the model sees it best, as it always does."""
_SLICE = 1 << 18
"""Characters of base64 that are decoded in one go, which holds Python's lock (GIL); a multiple of four."""
_MAX_HEAD = 1024
"""Characters before the comma of a ``data:`` URL."""
_WHITE = " \t\r\n"
_KEPT_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
"""Pillow's modes that PNG can hold."""


def set_content(target: pb.ChatMessage, parts: Sequence[object], path: str) -> None:
    """Set a message's content: one text where all parts are texts, else its parts in order.

    Raises TypeError for what is no part, InvalidRequest for a part that cannot be used.
    """
    found = [_part(part, f"{path}[{number}]") for number, part in enumerate(parts)]
    if not found:
        raise invalid(path, "an empty list: expected a text, or at least one part of type text")
    if all(isinstance(part, str) for part in found):
        target.content = "".join(part for part in found if isinstance(part, str))
        return
    for number, part in enumerate(found):
        if isinstance(part, str):
            target.content_parts.add().text = part
        else:  # not by a message of its own: copying that would take several times as long
            media = target.content_parts.add().media
            media.data = part.data
            assign(media, "mime_type", part.mime_type, option=f"{path}[{number}].mime_type")


def has_pictures(chat: pb.Chat) -> bool:
    """Whether any message has one."""
    return any(part.WhichOneof("part") == "media" for message in chat.messages for part in message.content_parts)


class _File(NamedTuple):
    """A picture's file, and its type; empty if none is declared."""

    data: bytes
    mime_type: object = ""


def _part(part: object, where: str) -> str | _File:
    """A text, or a picture."""
    if isinstance(part, str):
        return _checked_text(part, where)
    if not isinstance(part, Mapping):
        if (picture := _picture(part, where)) is not None:
            return picture
        wanted = "a dict such as {'type': 'text', 'text': 'Hello'}, a text, or a picture"
        raise TypeError(f"{where}: expected {wanted}, got {type(part).__name__}")
    kind = part.get("type")
    if kind == "text":
        _check_keys(part, ("text",), where)
        return _checked_text(part.get("text"), f"{where}.text")
    if kind == "image":
        _check_keys(part, ("image", "mime_type"), where)
        return _image(part, where)
    if kind == "image_url":
        _check_keys(part, ("image_url",), where)
        return _image_url(part.get("image_url"), f"{where}.image_url")
    problem = "its type is missing" if kind is None else f"a part of type {kind!r} is not supported"
    raise invalid(where, f"{problem}: expected parts of type {_KINDS}")


def _check_keys(part: Mapping[Any, Any], keys: tuple[str, ...], where: str) -> None:
    if others := [key for key in part if key not in ("type", *keys)]:
        raise TypeError(f"{where}: unknown key {others[0]!r}: expected type and {' and '.join(keys)}")


def _checked_text(text: object, where: str) -> str:
    """The text, if the contract can hold it."""
    checked = pb.ChatMessage()
    assign(checked, "content", text, option=where)
    return checked.content


def _image(part: Mapping[Any, Any], where: str) -> _File:
    given = part.get("image")
    found = _of_url(given, f"{where}.image") if isinstance(given, str) else _picture(given, f"{where}.image")
    if found is None:
        raise TypeError(f"{where}.image: expected {_PICTURES}, got {type(given).__name__}")
    mime_type = part.get("mime_type")
    return found if mime_type is None else found._replace(mime_type=mime_type)


def _image_url(given: object, where: str) -> _File:
    """A part in OpenAI's form."""
    url = given
    if isinstance(given, Mapping):
        if others := [key for key in given if key not in ("url", "detail")]:
            raise TypeError(f"{where}: unknown key {others[0]!r}: expected url and detail")
        if given.get("detail") not in _DETAILS:
            raise invalid(f"{where}.detail", f"{given['detail']!r} is not supported: expected auto, or none")
        url, where = given.get("url"), f"{where}.url"
    if not isinstance(url, str):
        raise TypeError(f"{where}: expected a data: URL, got {type(url).__name__}")
    return _of_url(url, where)


def _of_url(url: str, where: str) -> _File:
    if url[:8].lower().startswith(("http:", "https:", "file:")):
        raise invalid(where, f"the client fetches nothing: give the picture itself, as {_PICTURES}")
    try:
        data, mime_type = read_data_url(url)
    except InvalidRequest as error:
        raise invalid(where, str(error).partition(": ")[2]) from None
    return _File(data, mime_type)


def read_data_url(url: str) -> tuple[bytes, str]:
    """The bytes and the type of a ``data:`` URL in base64. Raises InvalidRequest."""
    comma = url.find(",", 0, _MAX_HEAD)
    name, *options = url[: max(comma, 0)].split(";")
    if name[:5].lower() != "data:" or "base64" not in [one.strip().lower() for one in options]:
        raise invalid("url", f"{url[:40]!r} is no data: URL in base64: expected data:image/png;base64,…")
    try:
        data = decode_base64(url, comma + 1)
    except ValueError as error:
        raise invalid("url", f"not base64 after the comma ({error}): expected data:image/png;base64,…") from None
    if not data:
        raise invalid("url", "nothing after the comma: expected data:image/png;base64,…")
    return data, name[5:].strip().lower()


def decode_base64(text: str, begin: int = 0) -> bytes:
    """The bytes of what follows ``begin``, without white space, as broken lines have it. Raises ValueError.

    They are decoded by slices, so that other threads need not wait for all of a large text.
    """
    parts: list[bytes] = []
    rest, padded = "", False
    for start in range(begin, len(text), _SLICE):
        piece = rest + text[start : start + _SLICE]
        if any(one in piece for one in _WHITE):
            piece = "".join(piece.split())
        is_last = start + _SLICE >= len(text)
        whole = len(piece) if is_last else len(piece) // 4 * 4
        if padded and piece:
            raise ValueError("Excess data after padding")
        parts.append(binascii.a2b_base64(piece[:whole], strict_mode=True))
        rest, padded = piece[whole:], padded or piece[:whole].endswith("=")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _picture(given: object, where: str) -> _File | None:
    """A picture as Python programs have it; None if it is none."""
    if isinstance(given, bytes | bytearray | memoryview):
        data = bytes(given)
    elif isinstance(given, os.PathLike):
        data = _of_file(Path(given), where)
    elif callable(getattr(given, "save", None)) and isinstance(getattr(given, "mode", None), str):
        data = _of_pillow(given, where)
    else:
        return None
    if not data:
        raise invalid(where, "an empty picture: expected the bytes of a file such as a PNG or JPEG")
    return _File(data)


def _of_file(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PICTURE_FILE_BYTES + 1)
    except OSError as error:
        raise invalid(where, f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_PICTURE_FILE_BYTES:
        raise invalid(where, f"{str(path)!r} has more than {MAX_PICTURE_FILE_BYTES} bytes: expected a picture")
    return data


def _of_pillow(picture: Any, where: str) -> bytes:
    """The picture as PNG, which keeps every pixel."""
    buffer = BytesIO()
    try:
        (picture if picture.mode in _KEPT_MODES else picture.convert("RGB")).save(buffer, format="PNG")
    except (OSError, ValueError) as error:
        raise invalid(where, f"the picture cannot be written as PNG: {error}") from None
    return buffer.getvalue()
