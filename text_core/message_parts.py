"""Messages whose content is a list of parts, in the form that a chat template takes: lists, or text with placeholders.

A part is ``{"type": "text", "text": …}`` or ``{"type": "image"}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PROBED_TEXT = "RINGLINE-SAYS"
_Chat = list[dict[str, Any]]


def probe(*, picture: bool, in_parts: bool) -> _Chat:
    """A chat that shows whether a template takes content in this form."""
    if not in_parts:
        return [{"role": "user", "content": PROBED_TEXT}]
    parts: list[dict[str, str]] = [{"type": "text", "text": PROBED_TEXT}]
    return [{"role": "user", "content": [{"type": "image"}, *parts] if picture else parts}]


def has_pictures(chat: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any message has a picture."""
    return any(_is_picture(part) for message in chat for part in _parts(message))


def as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """``message`` with its text as a part."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}] if content else []}


def as_text(message: dict[str, Any], placeholder: str) -> dict[str, Any]:
    """``message`` with its parts as one text: a line with ``placeholder`` for each picture, then its texts.

    It is the form in which vLLM gives parts to templates that take text.
    """
    if not (parts := _parts(message)):
        return message
    lines = [placeholder for part in parts if _is_picture(part)]
    lines += [str(part.get("text", "")) for part in parts if not _is_picture(part)]
    return {**message, "content": "\n".join(lines)}


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else ()


def _is_picture(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image"
