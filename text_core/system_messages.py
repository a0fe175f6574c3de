"""Rearranges system messages that a chat template does not support where they stand.

Clients send system messages in the middle of a conversation, or two at its beginning. Many templates support only one,
as the first message: they refuse others, or silently omit them. ``ARRANGEMENTS`` has the alternatives; the caller takes
the first that suits the template, found by rendering a chat with marks for texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from text_core.message_parts import has_pictures

_Chat = list[dict[str, Any]]

_SYSTEM = ("system", "developer")
_MARK = re.compile(r"RINGLINE-SYSTEM-(\d+)-SAYS")


def has_more_than_the_first(chat: Sequence[dict[str, Any]]) -> bool:
    """Whether there are system messages after the first message; False if the chat's contents cannot be joined."""
    return any(map(_is_systems, chat[1:])) and all(isinstance(_content(message), str | list) for message in chat)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a chat."""

    count: int
    seen: tuple[str, ...]
    """Numbers of those that stand for messages with pictures, in the chat's order."""


def marked(chat: _Chat, placeholder: str = "") -> tuple[_Chat, Marks]:
    """``chat`` with short texts, and marks in place of the contents of system messages and of those with pictures.

    ``placeholder``: what stands for a picture in a text; empty: nothing does.
    """
    marks = 0
    seen = []
    short = []
    for message in chat:
        content = _content(message)
        in_text = bool(placeholder) and isinstance(content, str) and placeholder in content
        has_picture = in_text or has_pictures([message])
        if _is_systems(message) or has_picture:
            mark = f"RINGLINE-SYSTEM-{marks}-SAYS"
            seen += [str(marks)] if has_picture else []
            marks += 1
            content = mark if isinstance(content, str) else [{"type": "text", "text": mark}]
        elif isinstance(content, str):
            content = content and "x"
        short.append({**message, "content": content} if "content" in message or _is_systems(message) else message)
    return short, Marks(marks, tuple(seen))


def shows_all(rendered: str, marks: Marks) -> bool:
    """Whether ``rendered`` contains every mark at least once."""
    return len(set(_MARK.findall(rendered))) == marks.count


def shows_in_order(rendered: str, marks: Marks) -> bool:
    """Whether messages with pictures stand in their order in ``rendered``: placeholders are filled in that order."""
    return tuple(one for one in dict.fromkeys(_MARK.findall(rendered)) if one in marks.seen) == marks.seen


def _as_it_stands(chat: _Chat) -> _Chat:
    return chat


def _one_first(chat: _Chat) -> _Chat:
    """Merge the leading system messages."""
    first = list(takewhile(_is_systems, chat))
    return [merged(first), *chat[len(first) :]] if first else chat


def _later_ones_by_the_user(chat: _Chat) -> _Chat:
    """Merge the leading system messages; later ones become part of the user's turn."""
    chat = _one_first(chat)
    first = 1 if _is_systems(chat[0]) else 0
    return chat[:first] + _by_the_user(chat[first:])


def _all_first(chat: _Chat) -> _Chat:
    """Merge all system messages into one, at the beginning."""
    return [merged(list(filter(_is_systems, chat))), *(message for message in chat if not _is_systems(message))]


def _by_the_user(chat: _Chat) -> _Chat:
    """Make system messages part of the user's turn, merged with the user messages before and after."""
    turns: list[_Chat] = []
    """Groups of messages to merge."""
    last: dict[str, Any] = {}
    for message in chat:
        said = {"role": "user", "content": _content(message)} if _is_systems(message) else message
        joins = said.get("role") == "user" and (_is_systems(message) or _is_systems(last))
        if joins and turns and turns[-1][-1].get("role") == "user":
            turns[-1].append(said)
        else:
            turns.append([said])
        last = message
    return [turn[0] if len(turn) == 1 else {**turn[-1], **merged(turn)} for turn in turns]


ARRANGEMENTS: tuple[Callable[[_Chat], _Chat], ...] = (
    _as_it_stands,
    _one_first,
    _later_ones_by_the_user,
    _all_first,
    _by_the_user,
)
"""In order of preference: later ones change more."""


def _is_systems(message: dict[str, Any]) -> bool:
    return message.get("role") in _SYSTEM


def _content(message: dict[str, Any]) -> Any:
    return message.get("content", "")


def merged(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first message, with the contents of all joined."""
    contents = [_content(message) for message in messages]
    if all(isinstance(content, str) for content in contents):
        return {**messages[0], "content": "\n".join(filter(None, contents))}
    parts = [[{"type": "text", "text": one}] if isinstance(one, str) else one for one in contents]
    return {**messages[0], "content": [part for content in parts for part in content]}
