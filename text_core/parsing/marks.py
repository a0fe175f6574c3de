"""Special tokens within text.

A special token that is a marker of a format must not be mistaken for the same characters spelled out inside a string of
JSON. So it comes to a parser as one character, its *mark*: half of a surrogate pair, which no decoded text contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FIRST = 0xD800
_TEXTS: list[str] = []
"""Texts of the markers; a marker's mark is ``_FIRST`` plus its index."""
_MARKS = re.compile("[\ud800-\udfff]")
_UNMARKED = re.compile("[^\ud800-\udfff]+")


def mark(marker: str) -> str:
    """The character that stands for the special token whose text is ``marker``."""
    if marker not in _TEXTS:
        _TEXTS.append(marker)
    return chr(_FIRST + _TEXTS.index(marker))


def marker_text(text: str) -> str:
    """``text`` with the markers spelled out."""
    return _MARKS.sub(lambda found: _TEXTS[ord(found[0]) - _FIRST], text)


def without_marks(text: str) -> str:
    """``text`` without its marks: special tokens that turned out to mark nothing, left out as they are of the text."""
    return _MARKS.sub("", text)


def unmarked_runs(text: str) -> Iterator[tuple[int, int]]:
    """Where ``text`` has no marks: begins and ends."""
    return (found.span() for found in _UNMARKED.finditer(text))
