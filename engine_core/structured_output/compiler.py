"""Compiles grammars within limits and keeps the last used by digest; thread-safe."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from engine_core.errors import InvalidRequestError
from engine_core.structured_output.matcher import Matcher
from text_core.grammar.grammar_text import without_forcing
from text_core.grammar.limits import LIMITS_VERSION, MAX_GRAMMAR_BYTES, parser_limits
from text_core.grammar.token_table import TokenTableError, token_table
from text_core.tokenizer import Tokenizer, TokenizerError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT_GRAMMARS = 256
KEPT_BYTES = 2 << 20
"""Texts of kept grammars. At first, a grammar of a few hundred bytes takes about 90 kB of memory, larger ones up to 200
times their text."""
KEPT_SECONDS = 5.0
"""Time spent on slow masks (longer than ``SLOW_MASK``) of kept grammars: these grow the lexers, by at most about 60 MB
per second. Masks of known states are fast."""
SLOW_MASK = 0.001
"""Seconds."""


class GrammarsUnavailableError(Exception):
    """Grammars cannot be used with this model; the text says why."""


def library_version() -> str | None:
    """llguidance's; None if it is not installed, so that grammars cannot be used."""
    try:
        return version("llguidance")
    except PackageNotFoundError:
        return None


def grammar_numerics() -> str:
    """What decides which tokens a grammar admits, besides the model's tokenizer."""
    return f"llguidance {library_version()}, limits {LIMITS_VERSION}"


@dataclass(slots=True, eq=False)
class _Compiled:
    """A grammar that is compiled, or being compiled."""

    digest: bytes
    size: int
    """Bytes of its text."""
    matcher: Future[LLMatcher] = field(default_factory=Future)
    """At the grammar's beginning. Copies share its lexer."""
    seconds: float = 0.0
    """Time spent on slow masks (``KEPT_SECONDS``)."""


class GrammarCompiler:
    """Makes matchers. The memory of kept grammars is bounded."""

    def __init__(self, tokenizer: LLTokenizer, eos_token_ids: Sequence[int]) -> None:
        """``eos_token_ids`` are those of ``tokenizer``."""
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[bytes, _Compiled] = OrderedDict()
        """By digest, least recently used first."""
        self._kept_bytes = 0
        self._kept_seconds = 0.0

    @classmethod
    def from_directory(cls, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> GrammarCompiler:
        """For the tokenizer in ``directory``. Raises ``GrammarsUnavailableError``."""
        if not eos_token_ids:
            raise GrammarsUnavailableError("the model has no eos token, with which an output could end")
        try:
            tokenizer = Tokenizer.from_directory(directory)
        except (OSError, TokenizerError) as error:
            raise GrammarsUnavailableError(f"the tokenizer cannot be read: {error}") from error
        try:
            table = token_table(tokenizer, vocab_size, eos_token_ids, with_slices=True)
        except TokenTableError as error:
            raise GrammarsUnavailableError(str(error)) from error
        return cls(table, eos_token_ids)

    def is_special_token(self, token_id: int) -> bool:
        """Whether a grammar must name the token by its id."""
        return self._tokenizer.is_special_token(token_id)

    def ends_within_character(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of the tokens' bytes begin a character in UTF-8 and do not end it."""
        for count, byte in enumerate(reversed(self._tokenizer.decode_bytes(list(token_ids))[-4:]), 1):
            if byte < 0x80:
                return False
            if byte >= 0xC0:
                return count < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        return False

    def has(self, grammar: str) -> bool:
        """Whether ``grammar`` is compiled, or being compiled."""
        return _digest(grammar.encode(errors="replace")) in self._compiled

    def compile(self, grammar: str) -> None:
        """Compile ``grammar`` unless it is compiled; wait if another thread is compiling it.

        Raises ``InvalidRequestError``.
        """
        self._template(grammar)

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of ``grammar``, compiled if needed; raises as ``compile``.

        Matchers of a grammar share its lexer and the states that any of them has reached: see ``lexer_is_full``.
        """
        compiled = self._template(grammar)
        observe = partial(self._observe, compiled)
        negates = "<[^" in grammar
        kept_out = [token for token in sorted(self._eos_token_ids) if negates and f"<[{token}]>" not in grammar]
        return Matcher(compiled.matcher.result().deep_copy(), self._eos_token_ids, observe, kept_out)

    def fresh_matcher(self, grammar: str) -> Matcher:
        """Like ``matcher``, with a new lexer, which later matchers share."""
        with self._lock:
            self._drop(self._compiled.get(_digest(grammar.encode(errors="replace"))))
        return self.matcher(grammar)

    def unforced(self, grammar: str) -> str:
        """``grammar`` for matchers that force nothing: see ``Matcher.forces_marker``."""
        return without_forcing(grammar)

    def _template(self, grammar: str) -> _Compiled:
        text = grammar.encode(errors="replace")
        if len(text) > MAX_GRAMMAR_BYTES:
            raise InvalidRequestError("grammar", f"has {len(text)} bytes; expected at most {MAX_GRAMMAR_BYTES}")
        digest = _digest(text)
        with self._lock:
            found = self._compiled.get(digest)
            compiled = found or _Compiled(digest, len(text))
            if found is None:
                self._compiled[digest] = compiled
                self._kept_bytes += compiled.size
            self._compiled.move_to_end(digest)
            self._drop_oldest()
        if found is None:
            self._compile(grammar, compiled)
        compiled.matcher.result()
        return compiled

    def _compile(self, grammar: str, compiled: _Compiled) -> None:
        from llguidance import LLMatcher

        try:
            limits = parser_limits(self._tokenizer.vocab_size, grammar)
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
            if matcher.is_error():
                raise InvalidRequestError("grammar", matcher.get_error().removesuffix("<non-verbose/>").strip())
        except BaseException as error:
            with self._lock:
                self._drop(compiled)
            compiled.matcher.set_exception(error)
        else:
            compiled.matcher.set_result(matcher)

    def _observe(self, compiled: _Compiled, seconds: float) -> None:
        """Record that a mask of ``compiled`` took ``seconds``."""
        if seconds <= SLOW_MASK:
            return
        with self._lock:
            compiled.seconds += seconds
            if self._compiled.get(compiled.digest) is compiled:
                self._kept_seconds += seconds
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        while (
            len(self._compiled) > KEPT_GRAMMARS
            or self._kept_bytes > KEPT_BYTES
            or (self._compiled and self._kept_seconds > KEPT_SECONDS)
        ):
            self._drop(next(iter(self._compiled.values())))

    def _drop(self, compiled: _Compiled | None) -> None:
        if compiled is not None and self._compiled.get(compiled.digest) is compiled:
            del self._compiled[compiled.digest]
            self._kept_bytes -= compiled.size
            self._kept_seconds -= compiled.seconds


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
