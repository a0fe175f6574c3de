"""Limits of a grammar: its size, and the steps that llguidance counts while compiling and matching it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_GRAMMAR_BYTES = 1 << 20
"""UTF-8 bytes of a grammar's text, which may be longer than its constraint."""
LEAST_ENTRIES = 50_000
"""Smaller vocabularies have the limits of this size."""
MAX_ITEMS = 2_000
"""Parser items at one point of an output: the ways to continue, and those to return to. n nested or right-recursive
parts need n items; an optional property of an object needs four."""
MAX_WRITTEN_ITEMS = 1_100
"""The limit for grammars that clients write. If ambiguous, a token takes time quadratic in the items, up to 25 ms, and
replaying an output in which every token adds an item takes 3 s."""
MAX_LEXER_STATES = 150_000
"""Per grammar; 0.3 to 3 kB each. A text of 16,384 counted characters needs up to three per character."""
LIMITS_VERSION = 2
"""Incremented when a limit changes, since limits decide where an output fails."""
WRITTEN_GRAMMAR = "// a client's grammar"
"""A comment that marks grammars written by clients."""


def parser_limits(vocab_size: int, grammar: str) -> LLParserLimits:
    """Bounds of time and memory for ``grammar``; those of a mask are proportional to the vocabulary.

    A sequence's own tokens decide whether it reaches the parser's limits. Other sequences that share a lexer can also
    reach the lexer's limits, so these count only if a new lexer reaches them, too. States that a lexer already has cost
    no steps: other sequences may save a sequence steps, but never make it fail.
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
