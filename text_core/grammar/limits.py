"""Limits of a grammar: its size, and the steps that llguidance counts, when it is checked and when it is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_GRAMMAR_BYTES = 1 << 20
"""UTF-8 bytes of a grammar's text, which may be longer than the constraint that it was made from."""
LEAST_ENTRIES = 50_000
"""A smaller vocabulary has the limits of one of this size."""
MAX_ITEMS = 2_000
"""Ways in which a grammar may go on at one point of an output, and to which it may go back. A text of n nested or
right-recursive parts has n of them; an optional property of an object has four."""
MAX_WRITTEN_ITEMS = 1_100
"""The same for rules that a client wrote. They may be ambiguous: then a token takes time in proportion to the square
of the items, up to 25 ms, and an output of which each token has one more item takes 3 s to take in again."""
MAX_LEXER_STATES = 150_000
"""Of a grammar: 0.3 to 3 kB each. A text of 16,384 characters that are counted takes up to three for each."""
LIMITS_VERSION = 2
"""Raised when a limit changes, since limits decide where an output fails."""
WRITTEN_GRAMMAR = "// a client's grammar"
"""A comment in grammars whose rules a client wrote."""


def parser_limits(vocab_size: int, grammar: str) -> LLParserLimits:
    """Bounds of time and memory for ``grammar``: of a mask, in proportion to the vocabulary.

    Certain tokens reach the limits of parsing. Those of the lexer are also reached by other sequences that share it,
    so they count only where a new lexer reaches them, too. What a lexer has already costs no steps: others may save a
    sequence steps, and never make it fail.
    """
    from llguidance import LLParserLimits

    entries = max(vocab_size, LEAST_ENTRIES)
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,  # about 20 ms
        step_lexer_fuel=4 * entries,  # of a mask: about 0.3 ms for 1,000 entries; forms that people write take a tenth
        max_items_in_row=MAX_WRITTEN_ITEMS if WRITTEN_GRAMMAR in grammar else MAX_ITEMS,
        step_max_items=entries,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
