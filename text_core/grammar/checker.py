"""Checks that a grammar compiles for a model's tokenizer, within limits."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.limits import MAX_GRAMMAR_BYTES, parser_limits
from text_core.grammar.markers import Markers
from text_core.grammar.token_table import TokenTableError, token_table
from text_core.panics import TokenizerPanic, panics_as_errors
from text_core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class GrammarChecker:
    """Checks grammars against one model's tokenizer; thread-safe.

    The first use converts the tokenizer, which takes about a second per million vocabulary entries.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """``vocab_size``: the model's, which may exceed the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocab_size = max(vocab_size, tokenizer.vocab_size)
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        """Guards the lazily computed properties."""

    def check(self, grammar: str, field: str = "") -> None:
        """Raises ``ConstraintError`` if nothing matches ``grammar``, or llguidance cannot use it within its limits.

        ``field``: the error's field.
        """
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise ConstraintError(field, f"its grammar is larger than {MAX_GRAMMAR_BYTES >> 10} KiB: simplify it")
        with self._lock:
            tokenizer = self._converted
        from llguidance import LLMatcher

        try:
            with panics_as_errors():
                matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits(self._vocab_size, grammar))
                mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        except TokenizerPanic as panic:
            raise ConstraintError(field, f"cannot be compiled: {panic}") from None
        if matcher.is_error():
            raise ConstraintError(field, _problem(matcher.get_error()))
        if not any(mask):
            raise ConstraintError(field, "nothing can match it")

    def marker(self, text: str) -> str:
        """A Lark expression for ``text``: ``<[5]>`` for a special token, ``"…"`` for other text."""
        with self._lock:
            markers = self._markers
        return markers(text)

    @cached_property
    def _converted(self) -> LLTokenizer:
        try:
            return token_table(self._tokenizer, self._vocab_size, self._eos_token_ids, with_slices=False)
        except TokenTableError as error:
            raise ConstraintError("", f"no constraint can be used: {error}") from None

    @cached_property
    def _markers(self) -> Markers:
        return Markers(self._tokenizer.added_tokens(), self._converted.is_special_token)


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
