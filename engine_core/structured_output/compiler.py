"""Grammars, compiled within limits and kept by digest, the ones used last; any thread may ask for one."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from engine_core.errors import InvalidRequestError
from engine_core.structured_output.matcher import Matcher
from engine_core.structured_output.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_GRAMMAR_BYTES = 1 << 20
"""UTF-8 bytes of one grammar's text."""
KEPT_GRAMMARS = 256
KEPT_BYTES = 2 << 20
"""Of the texts of the grammars that are kept. One of a few hundred bytes takes about 90 kB, and larger ones up to 200
times their text."""


def grammar_numerics() -> str:
    """What decides which tokens a grammar admits, besides the model's tokenizer."""
    return f"llguidance {version('llguidance')}"


class GrammarCompiler:
    """Makes matchers. The memory of what it keeps is bounded."""

    def __init__(self, tokenizer: LLTokenizer, eos_token_ids: Sequence[int]) -> None:
        """``eos_token_ids`` are those of ``tokenizer``."""
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._limits = _limits()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[bytes, tuple[int, Future[LLMatcher]]] = OrderedDict()
        """By digest: bytes of the text, and the matcher at the grammar's beginning. The last one was used last."""
        self._kept_bytes = 0

    @classmethod
    def from_directory(cls, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> GrammarCompiler:
        """For the tokenizer in ``directory``. Raises ``GrammarsUnavailableError``."""
        return cls(load_tokenizer(directory, vocab_size, eos_token_ids), eos_token_ids)

    def is_special_token(self, token_id: int) -> bool:
        """Whether a grammar must name the token by its id."""
        return self._tokenizer.is_special_token(token_id)

    def has(self, grammar: str) -> bool:
        """Whether ``grammar`` is compiled, or being compiled."""
        return _digest(grammar.encode(errors="replace")) in self._compiled

    def compile(self, grammar: str) -> None:
        """Compile ``grammar``, unless that was done, or is done by another thread, which is waited for.

        Raises ``InvalidRequestError``.
        """
        self._template(grammar)

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of ``grammar``, which is compiled if need be; raises as ``compile`` does.

        Matchers of a grammar share its lexer, and the states that any of them has reached: see ``lexer_is_full``.
        """
        return Matcher(self._template(grammar).deep_copy(), self._eos_token_ids)

    def fresh_matcher(self, grammar: str) -> Matcher:
        """As ``matcher``, with a new lexer, which later matchers share."""
        with self._lock:
            self._drop(_digest(grammar.encode(errors="replace")))
        return self.matcher(grammar)

    def _template(self, grammar: str) -> LLMatcher:
        text = grammar.encode(errors="replace")
        if len(text) > MAX_GRAMMAR_BYTES:
            raise InvalidRequestError("grammar", f"has {len(text)} bytes; expected at most {MAX_GRAMMAR_BYTES}")
        digest = _digest(text)
        with self._lock:
            known = self._compiled.get(digest)
            if known is None:
                future: Future[LLMatcher] = Future()
                self._compiled[digest] = len(text), future
                self._kept_bytes += len(text)
            else:
                future = known[1]
            self._compiled.move_to_end(digest)
            while len(self._compiled) > KEPT_GRAMMARS or self._kept_bytes > KEPT_BYTES:
                self._drop(next(iter(self._compiled)))
        if known is None:
            self._compile(grammar, digest, future)
        return future.result()

    def _compile(self, grammar: str, digest: bytes, future: Future[LLMatcher]) -> None:
        from llguidance import LLMatcher

        try:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
            if matcher.is_error():
                raise InvalidRequestError("grammar", matcher.get_error().removesuffix("<non-verbose/>").strip())
        except BaseException as error:
            with self._lock:
                if self._compiled.get(digest, (0, None))[1] is future:
                    self._drop(digest)
            future.set_exception(error)
        else:
            future.set_result(matcher)

    def _drop(self, digest: bytes) -> None:
        size, _ = self._compiled.pop(digest, (0, None))
        self._kept_bytes -= size


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _limits() -> LLParserLimits:
    """Bounds of time and memory. Those of parsing are reached by certain tokens; those of the lexer also by the other
    sequences that share it, and count only where a new lexer reaches them, too."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,  # about 20 ms
        step_lexer_fuel=200_000,  # about 15 ms a mask
        max_items_in_row=2_000,
        step_max_items=50_000,
        max_lexer_states=50_000,  # of a grammar: up to 3 kB a state
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
