"""Reads conversations for ``LLM.chat``, in OpenAI's form: a list of messages, or a list of such lists.

Anything else raises ``TypeError`` or ``ValueError``, which name the place: ``messages[0].content[1]``.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_core.offline.pictures import PICTURE_TYPES, PictureFile, picture_of_part

_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_MESSAGE = 'a message such as {"role": "user", "content": "Hello"}'
_CALL = 'a call such as {"function": {"name": "add", "arguments": {"a": 1}}}'


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in the form for chat templates."""

    place: str
    """In the caller's input, such as ``messages[3]``."""
    messages: tuple[Mapping[str, Any], ...]
    """Contents are texts, or with pictures lists of parts: ``{"type": "text", "text": …}`` or ``{"type": "image"}``."""
    pictures: tuple[PictureFile, ...] = ()
    """In order."""


def read_conversations(messages: object) -> list[Conversation]:
    """All conversations, in order."""
    items = _listed(messages, "messages", f"{_MESSAGE}, or a list of such lists")
    if all(isinstance(item, Mapping) for item in items):
        return [_read(items, "messages")]
    places = [f"messages[{index}]" for index in range(len(items))]
    return [_read(_listed(item, place, _MESSAGE), place) for place, item in zip(places, items, strict=True)]


def _read(messages: Sequence[object], place: str) -> Conversation:
    if not messages:
        raise ValueError(f"{place} is empty; expected at least one message")
    pictures: list[PictureFile] = []
    read = tuple(_message(each, f"{place}[{index}]", pictures) for index, each in enumerate(messages))
    return Conversation(place, read, tuple(pictures))


def _message(message: object, place: str, pictures: list[PictureFile]) -> Mapping[str, Any]:
    """A message; its pictures are added to ``pictures``."""
    given = _mapping(message, place, _MESSAGE)
    if unknown := [key for key in given if key not in _KEYS]:
        raise TypeError(f"{place} has the key {reprlib.repr(unknown[0])}; expected {', '.join(_KEYS)}")
    read: dict[str, Any] = {"role": _text(given.get("role"), f"{place}.role")}
    if not read["role"]:
        raise ValueError(f"{place}.role is empty; expected a role such as user or assistant")
    calls = given.get("tool_calls") or ()
    read["content"] = _content(given.get("content"), f"{place}.content", pictures, optional=bool(calls))
    if calls:
        listed = _listed(calls, f"{place}.tool_calls", _CALL)
        read["tool_calls"] = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(listed)]
    for key in ("name", "tool_call_id"):
        if given.get(key):
            read[key] = _text(given[key], f"{place}.{key}")
    return read


def _content(
    content: object, place: str, pictures: list[PictureFile], *, optional: bool
) -> str | list[Mapping[str, Any]]:
    """A text, or the texts of parts joined with newlines; with pictures, the parts."""
    if content is None and optional:
        return ""
    if not isinstance(content, list | tuple):
        return _text(content, place)
    parts: list[Mapping[str, Any]] = []
    for index, each in enumerate(content):
        part = _mapping(each, f"{place}[{index}]", 'a part such as {"type": "text", "text": "Hello"}')
        kind = part.get("type")
        if kind in PICTURE_TYPES:
            pictures.append(picture_of_part(part, f"{place}[{index}]"))
            parts.append({"type": "image"})
        elif kind == "text":
            parts.append({"type": "text", "text": _text(part.get("text"), f"{place}[{index}].text")})
        else:
            expected = "expected parts of type 'text', 'image_url' or 'image'"
            raise ValueError(f"{place}[{index}] is a part of type {reprlib.repr(kind)}; {expected}")
    if any(part["type"] == "image" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _call(call: object, place: str) -> Mapping[str, Any]:
    given = _mapping(call, place, _CALL)
    function = _mapping(given.get("function", given), f"{place}.function", '{"name": …, "arguments": …}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}.arguments is not JSON ({error}); expected an object") from None
    read: dict[str, Any] = {"id": _text(given["id"], f"{place}.id")} if given.get("id") else {}
    return read | {
        "type": "function",
        "function": {
            "name": _text(function.get("name"), f"{place}.name"),
            "arguments": as_json(arguments, dict, f"{place}.arguments"),
        },
    }


def as_json(value: object, kind: type, place: str) -> Any:
    """``value`` after a JSON round trip, as templates expect. Raises ``TypeError`` or ``ValueError``."""
    try:
        read = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} cannot be written as JSON: {error}") from None
    if not isinstance(read, kind):
        accepted = "a list" if kind is list else "a dictionary"
        raise TypeError(f"{place} is of type {type(value).__name__}; expected {accepted}")
    return read


def _listed(value: object, place: str, accepted: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise TypeError(f"{place} is of type {type(value).__name__}; expected a list with {accepted}")


def _mapping(value: object, place: str, accepted: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise TypeError(f"{place} is of type {type(value).__name__}; expected {accepted}")


def _text(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{place} is {'missing' if value is None else f'of type {type(value).__name__}'}; expected text")
