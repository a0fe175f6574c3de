"""Patterns that find where a value ends that is written as text, though it may spell what ends it.

A closing tag within a value is text: it ends the value only where what follows is what must follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from text_core.parsing.text_parser import MAX_NAME, begun

_MOST = 512
"""White space behind a closing tag, in characters, that is looked through for what must follow."""
_SPACE = rf"\s{{0,{_MOST - 1}}}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What ends a value whose closing tag is left out: the beginning of a line with one of these."""

    before: Sequence[str]
    """What comes before a key."""
    keys: Sequence[str]
    """The keys that a tool has, of at most ``MAX_NAME`` characters."""
    behind: Sequence[str]
    """What comes behind a key, and begins with nothing that a key has."""
    call_ends: Sequence[str]
    """What ends a call, if ``ends`` follow."""
    ends: Sequence[str]
    """What ends calls, if ``begins`` or nothing follows."""
    begins: Sequence[str]


def value_ends(
    ends: Sequence[str],
    following: Sequence[str],
    *,
    in_lines: bool = False,
    left_out: LeftOut | None = None,
    breaking: Sequence[str] = (),
) -> re.Pattern[str]:
    """A pattern that finds the first of ``ends`` before one of ``following``, if any, or what may be its beginning.

    Of its groups, ``full`` is an end, ``closed`` one if the answer ends, and ``broken`` is empty, before one of
    ``breaking``, which no value has. Without any of them, what was found may be the beginning of an end.
    ``in_lines``: whether a line break before an end belongs to it.
    """
    line = r"\n?+" if in_lines else ""
    end = _any(ends)
    full, closed = [rf"{line}(?:{end})"], ["(?!)"]
    if following:
        full = [rf"{line}(?:{end})(?=\s{{{_MOST}}}|{_SPACE}(?:{_any(following)}))"]
        closed = [rf"{line}(?:{end})(?={_SPACE}(?:{_any_begun(following)})?\Z)"]
    beginnings = [rf"{line}(?:{_any_begun([*ends, *breaking])})?\Z"]
    if left_out is not None:
        call_end = rf"(?:{_any(left_out.call_ends)}){_SPACE}"
        calls_end = rf"{call_end}(?:{_any(left_out.ends)}){_SPACE}"
        before, behind = _any(left_out.before), _any(left_out.behind)
        if left_out.keys:
            full.append(rf"\n(?=(?:{before})(?:{_any(left_out.keys)})(?:{behind}))")
        full.append(rf"\n(?={calls_end}(?:{_any(left_out.begins)}))")
        closed.append(rf"\n(?={calls_end}(?:{_any_begun(left_out.begins)})?\Z)")
        lines = _any_begun([*left_out.before, *left_out.call_ends])
        # of any key: the beginnings of all keys would take long to compile
        lines += rf"|(?:{before})[^\n{''.join(re.escape(text[0]) for text in left_out.behind)}]{{0,{MAX_NAME}}}"
        lines += f"(?:{_any_begun(left_out.behind)})?"
        beginnings.append(rf"\n(?:{lines}|{call_end}(?:{_any_begun(left_out.ends)})?)?\Z")
    broken = rf"(?P<broken>(?={_any(breaking)}))|" if breaking else r"(?P<broken>(?!))|"
    return re.compile(f"(?P<full>{'|'.join(full)})|(?P<closed>{'|'.join(closed)})|{broken}{'|'.join(beginnings)}")


def _any(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts))


def _any_begun(texts: Sequence[str]) -> str:
    return "|".join(begun(text) for text in texts if len(text) > 1) or "(?!)"
