"""Pieces of grammar text in llguidance's variant of Lark's notation."""

from __future__ import annotations

import json

FREE_TEXT = "/(?s:.*)/"
"""A terminal for any text without special tokens."""


def literal(text: str) -> str:
    """A terminal for exactly ``text``."""
    return json.dumps(text)  # Lark reads JSON's escapes, but no raw control characters


def until(marker: str) -> str:
    """Definition of a terminal, to be marked lazy: any text through the first ``marker``, a ``literal``."""
    return f"{FREE_TEXT} {marker}"


def leading_terminal(marker: str) -> tuple[str, str]:
    """The first terminal of a marker's expression, a ``literal`` or a special token, and what follows it, if any."""
    end = json.JSONDecoder().raw_decode(marker)[1] if marker.startswith('"') else marker.index(">") + 1
    return marker[:end], marker[end:]
