"""Converts texts with special tokens to grammar expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from text_core.grammar.lark import literal


class Markers:
    """Converts texts that may contain special tokens of one tokenizer."""

    def __init__(self, added_tokens: Mapping[str, int], is_special: Callable[[int], bool]) -> None:
        """``added_tokens``: ids by text; ``is_special``: whether grammars must name a token by its id."""
        special = {text: token for text, token in added_tokens.items() if is_special(token)}
        self._ids = dict(sorted(special.items(), key=lambda item: -len(item[0])))
        """Longest text first."""

    def __call__(self, text: str) -> str:
        """A Lark expression for ``text``: ``<[5]>`` for a special token, ``"…"`` for other text."""
        if not self._ids:
            return literal(text)
        pieces = re.split("(" + "|".join(map(re.escape, self._ids)) + ")", text)
        return " ".join(
            f"<[{self._ids[piece]}]>" if piece in self._ids else literal(piece) for piece in pieces if piece
        )
