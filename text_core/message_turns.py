"""Joins messages for chat templates that take users and assistants in turns only, and refuse others.

Clients send two messages of the user after each other, or text of the user behind the result of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from text_core.system_messages import merged


def in_turns(chat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``chat`` with each message of the user part of the user's message, or the result of a call, before it."""
    turns: list[list[dict[str, Any]]] = []
    """Groups of messages to merge; each once, as there may be thousands."""
    for message in chat:
        last = turns[-1][-1] if turns else {}
        if message.get("role") == "user" and last.get("role") in ("user", "tool") and _has_content(message, last):
            turns[-1].append(message)
        else:
            turns.append([message])
    return [turn[0] if len(turn) == 1 else merged(turn) for turn in turns]


def _has_content(*messages: dict[str, Any]) -> bool:
    return all(isinstance(message.get("content"), str | list) for message in messages)
