"""Marks: single characters that stand for special tokens within text.

A special token that is a format's marker must not be confused with the same characters spelled out in a JSON string.
So parsers get it as one character, its *mark*: half of a surrogate pair, which decoded text never contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FIRST = 0xD800
_TEXTS: list[str] = []
"""Marker texts; a mark is ``_FIRST`` plus the index of its marker."""
_MARKS = re.compile("[\ud800-\udfff]")
_UNMARKED = re.compile("[^\ud800-\udfff]+")


def mark(marker: str) -> str:
    """The character that stands for the special token whose text is ``marker``."""
    if marker not in _TEXTS:
        _TEXTS.append(marker)
    return chr(_FIRST + _TEXTS.index(marker))


def marker_text(text: str) -> str:
    """``text`` with its marks replaced by the marker texts."""
    return _MARKS.sub(lambda found: _TEXTS[ord(found[0]) - _FIRST], text)


def without_marks(text: str) -> str:
    """``text`` without marks, which stand for skipped special tokens that turned out to mark nothing."""
    return _MARKS.sub("", text)


def unmarked_runs(text: str) -> Iterator[tuple[int, int]]:
    """The (begin, end) of the runs of ``text`` without marks."""
    return (found.span() for found in _UNMARKED.finditer(text))
