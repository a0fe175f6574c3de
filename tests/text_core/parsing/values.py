"""Values for tests of scanners, and what a scanner makes of their text."""

from __future__ import annotations

from hypothesis import strategies as st

from text_core.parsing.json_calls import Scanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def scan(scanner: Scanner, pieces: list[str]) -> tuple[int, str, bool]:
    """Characters passed, the JSON of them, and whether the value is complete."""
    passed, out = 0, ""
    for piece in pieces:
        end, text = scanner.feed(piece, 0)
        passed, out = passed + end, out + text
        if end < len(piece):
            break
    return passed, out, scanner.done
