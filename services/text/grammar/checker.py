"""Tries a grammar on a model's tokenizer, within limits."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from services.text.grammar.constraints import ConstraintError
from services.text.grammar.markers import Markers
from services.text.panics import TokenizerPanic, panics_as_errors
from services.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

MAX_GRAMMAR_BYTES = 1 << 20
"""UTF-8 bytes of a grammar's text, which may be longer than the constraint that it was made from."""


class GrammarChecker:
    """Tries grammars on one model's tokenizer; thread-safe.

    The tokenizer is converted at the first use, which takes about a second per million entries of the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """``vocab_size``: of the model, which may have more entries than the tokenizer."""
        self._tokenizer = tokenizer
        self._vocab_size = max(vocab_size, tokenizer.vocab_size)
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        """Of what is made at the first use."""

    def check(self, grammar: str, field: str = "") -> None:
        """Raises ``ConstraintError`` for a grammar that nothing fits, or that llguidance cannot use within its limits.

        ``field``: the error's.
        """
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise ConstraintError(field, f"its grammar is larger than {MAX_GRAMMAR_BYTES >> 10} KiB: simplify it")
        with self._lock:
            tokenizer = self._converted
        from llguidance import LLMatcher

        try:
            with panics_as_errors():
                matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits(self._vocab_size))
                mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        except TokenizerPanic as panic:
            raise ConstraintError(field, f"cannot be compiled: {panic}") from None
        if matcher.is_error():
            raise ConstraintError(field, _problem(matcher.get_error()))
        if not any(mask):
            raise ConstraintError(field, "nothing can match it")

    def marker(self, text: str) -> str:
        """A Lark expression for ``text``, its special tokens as such: ``<[5]>`` for one, ``"…"`` for other text."""
        with self._lock:
            markers = self._markers
        return markers(text)

    @cached_property
    def _converted(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise ConstraintError("", f"no constraint can be checked: llguidance is not installed: {error}") from None
        try:
            with panics_as_errors():
                return LLTokenizer(
                    self._tokenizer.to_json(),
                    n_vocab=self._vocab_size,
                    eos_token=self._eos_token_ids or None,
                    slices=[],
                )
        except (ValueError, TokenizerPanic) as error:
            raise ConstraintError("", f"the model's tokenizer cannot be used for grammars: {error}") from None

    @cached_property
    def _markers(self) -> Markers:
        return Markers(self._tokenizer.added_tokens(), self._converted.is_special_token)


def _limits(vocab_size: int) -> LLParserLimits:
    """The engine's (engine_core/structured_output/compiler.py): what it could not begin is refused here."""
    from llguidance import LLParserLimits

    entries = max(vocab_size, 50_000)
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=4 * entries,
        step_max_items=entries,
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def _problem(error: str) -> str:
    """The library's message: its first line, in our words where they are clearer."""
    if error.startswith("panic"):
        return "cannot be compiled: the library that compiles it failed; simplify it"
    if error.startswith("NoExtension"):
        return "nothing can match it"
    first = error.split("\n", 1)[0]
    first = re.sub(r"^at 1\(\d+\): failed to compile JSON schema: ", "", first)
    first = re.sub(r"^(?:at )?(\d+)\((\d+)\):", r"line \1, column \2:", first)
    first = first.replace("Unsatisfiable schema:", "nothing can match it:")
    return first if len(first) <= 300 else f"{first[:297]}..."
