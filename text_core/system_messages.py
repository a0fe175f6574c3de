"""Places for the messages of a system that a chat template does not take where they stand.

Clients remind a model of something in the middle of a conversation, or begin it with two messages of the system. Many
templates take one, as the first message: they refuse others, or leave them out without a word. Here are the ways to
arrange such a chat; which is the first to suit a template is found by rendering one with marks for texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

_Chat = list[dict[str, Any]]

_SYSTEM = ("system", "developer")
_MARK = re.compile(r"RINGLINE-SYSTEM-\d+-SAYS")


def has_more_than_the_first(chat: Sequence[dict[str, Any]]) -> bool:
    """Whether the system speaks anywhere but in the first message; never of a chat whose contents cannot be joined."""
    return any(map(_is_systems, chat[1:])) and all(isinstance(_content(message), str | list) for message in chat)


def marked(chat: _Chat) -> tuple[_Chat, int]:
    """``chat`` with short texts, and how many of them are marks that stand for those of the system."""
    marks = 0
    short = []
    for message in chat:
        content = _content(message)
        if _is_systems(message):
            mark = f"RINGLINE-SYSTEM-{marks}-SAYS"
            marks += 1
            content = mark if isinstance(content, str) else [{"type": "text", "text": mark}]
        elif isinstance(content, str):
            content = content and "x"
        short.append({**message, "content": content} if "content" in message or _is_systems(message) else message)
    return short, marks


def shows_all(rendered: str, marks: int) -> bool:
    """Whether a text has all marks of the system's texts, each once or more."""
    return len(set(_MARK.findall(rendered))) == marks


def _as_it_stands(chat: _Chat) -> _Chat:
    return chat


def _one_first(chat: _Chat) -> _Chat:
    """What the system says before anybody else is one message."""
    first = list(takewhile(_is_systems, chat))
    return [_merged(first), *chat[len(first) :]] if first else chat


def _later_ones_by_the_user(chat: _Chat) -> _Chat:
    """One message first; what the system says later is a part of the user's turn."""
    chat = _one_first(chat)
    first = 1 if _is_systems(chat[0]) else 0
    return chat[:first] + _by_the_user(chat[first:])


def _all_first(chat: _Chat) -> _Chat:
    """One message first, with all that the system says."""
    return [_merged(list(filter(_is_systems, chat))), *(message for message in chat if not _is_systems(message))]


def _by_the_user(chat: _Chat) -> _Chat:
    """What the system says is a part of the user's turn: what the user says before and after it is one message."""
    turns: list[_Chat] = []
    """Messages that become one."""
    last: dict[str, Any] = {}
    for message in chat:
        said = {"role": "user", "content": _content(message)} if _is_systems(message) else message
        joins = said.get("role") == "user" and (_is_systems(message) or _is_systems(last))
        if joins and turns and turns[-1][-1].get("role") == "user":
            turns[-1].append(said)
        else:
            turns.append([said])
        last = message
    return [turn[0] if len(turn) == 1 else {**turn[-1], **_merged(turn)} for turn in turns]


ARRANGEMENTS: tuple[Callable[[_Chat], _Chat], ...] = (
    _as_it_stands,
    _one_first,
    _later_ones_by_the_user,
    _all_first,
    _by_the_user,
)
"""In the order of preference: the further down, the more is changed."""


def _is_systems(message: dict[str, Any]) -> bool:
    return message.get("role") in _SYSTEM


def _content(message: dict[str, Any]) -> Any:
    return message.get("content", "")


def _merged(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first message, with the contents of all."""
    contents = [_content(message) for message in messages]
    if all(isinstance(content, str) for content in contents):
        return {**messages[0], "content": "\n".join(filter(None, contents))}
    parts = [[{"type": "text", "text": one}] if isinstance(one, str) else one for one in contents]
    return {**messages[0], "content": [part for content in parts for part in content]}
