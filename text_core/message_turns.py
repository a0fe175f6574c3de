"""Joins messages for chat templates that take users and assistants in turns only, and refuse others.

Clients send two messages of the user after each other, or text of the user behind the result of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from text_core.system_messages import merged


def in_turns(chat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``chat`` with each message of the user part of the user's message, or the result of a call, before it."""
    turns: list[dict[str, Any]] = []
    for message in chat:
        before = turns[-1] if turns else {}
        if message.get("role") == "user" and before.get("role") in ("user", "tool") and _has_content(message, before):
            turns[-1] = merged([before, message])
        else:
            turns.append(message)
    return turns


def _has_content(*messages: dict[str, Any]) -> bool:
    return all(isinstance(message.get("content"), str | list) for message in messages)
