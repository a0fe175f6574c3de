"""Pieces of grammar text in llguidance's variant of Lark's notation."""

from __future__ import annotations

import json

FREE_TEXT = "/(?s:.*)/"
"""A terminal for any text; special tokens are no part of it."""


def literal(text: str) -> str:
    """A terminal for exactly ``text``."""
    return json.dumps(text)  # Lark reads JSON's escapes; raw control characters it does not


def until(marker: str) -> str:
    """A terminal's definition, to be marked lazy: any text up to and with the first ``marker``, a ``literal``."""
    return f"{FREE_TEXT} {marker}"


def leading_terminal(marker: str) -> tuple[str, str]:
    """The first terminal of a marker's expression, a ``literal`` or a special token, and what follows it, if any."""
    end = json.JSONDecoder().raw_decode(marker)[1] if marker.startswith('"') else marker.index(">") + 1
    return marker[:end], marker[end:]
