"""One sequence's place in its grammar: a function of only the grammar and the sequence's output tokens.

Exception: near the limit of lexer steps, other sequences with the same grammar may have saved a sequence some steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Bits = npt.NDArray[np.uint32]
"""[…, ⌈V / 32⌉]: bit i of word w is for token 32 · w + i."""

ALL = 0xFFFF_FFFF
"""A word that allows all of its tokens."""

_LEXER = "lexer error"
"""In llguidance's messages about limits of its lexer."""
_NO_FIT = "doesn't satisfy the grammar"
"""In llguidance's messages about tokens that the grammar does not admit."""
_CANNOT_FOLLOW = "the grammar cannot be followed"
_DEAD_END = "no token can follow: the grammar has a dead end here"


class Matcher:
    """Follows one output. Errors of grammars and models set ``failed_at`` and are never raised."""

    def __init__(
        self,
        matcher: LLMatcher | None,
        eos_token_ids: frozenset[int],
        observe: Callable[[float], None] = lambda seconds: None,
        kept_out: Sequence[int] = (),
    ) -> None:
        """Takes over ``matcher``; without one nothing can be sampled (``failed``).

        ``observe`` is called with each mask's seconds. ``kept_out``: eos tokens that the grammar admits as any others,
        by a negation; they are allowed only where an output may end.
        """
        self._observe = observe
        self._kept_out = kept_out
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self.num_tokens = 0
        """Output tokens so far."""
        self.failed_at: int | None = None
        """The output position at which nothing can be sampled; None: none is known."""
        self.problem = ""
        """Why nothing can be sampled."""
        self.lexer_is_full = False
        """Whether it failed because its shared lexer reached a limit: a new lexer may be able to go on."""
        self.forces_marker = False
        """Whether it failed because a text that must come spells a special token, which llguidance takes it for, and
        which its parser refuses: a matcher that forces nothing can go on."""
        self._ended = False
        """Whether the output has an eos token."""

    @classmethod
    def failed(cls, problem: str) -> Matcher:
        """A matcher that admits nothing."""
        matcher = cls(None, frozenset())
        matcher._fail(0, problem)
        return matcher

    def advance(self, token_ids: Sequence[int]) -> None:
        """Consume the next output tokens."""
        for token in token_ids:
            if self._matcher is not None and self.failed_at is None and not self._ended:
                if token in self._eos_token_ids and self._matcher.is_accepting():
                    self._ended = True  # llguidance would not count it
                elif not self._matcher.consume_token(token):
                    error = self._error(self._matcher)
                    refused = f"the grammar does not admit token {token} where the output has it"
                    self._fail(self.num_tokens, refused if _NO_FIT in error else f"{_CANNOT_FOLLOW}: {error}")
            self.num_tokens += 1

    def allow(self, bits: Bits, drafts: Sequence[int] = ()) -> None:
        """Write to ``bits`` [1 + D, W] which tokens may come next, and after each of the D ``drafts``.

        All tokens are allowed after a failure (``failed_at``), and after a draft that the grammar does not admit, which
        is never accepted.
        """
        bits.fill(ALL)
        matcher, taken = self._matcher, 0
        if matcher is None or self.failed_at is not None:
            return
        for row, draft in zip(bits, [*drafts, None], strict=True):
            if not self._fill(matcher, row, self.num_tokens + taken):
                return
            if draft is None or draft in self._eos_token_ids or matcher.is_stopped():
                break
            if not matcher.try_consume_tokens([draft]):
                break
            taken += 1
        if taken:
            matcher.rollback(taken)

    def forced(self, limit: int) -> list[int]:
        """The next tokens, at most ``limit``, while the grammar leaves a single text, tokenized by the tokenizer.

        Never an eos token: the step that computes the token before it samples it anyway.
        """
        if limit == 0 or self._matcher is None or self._ended or self.failed_at is not None:
            return []
        tokens = self._matcher.compute_ff_tokens()[:limit]
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else []

    def _fill(self, matcher: LLMatcher, row: npt.NDArray[np.uint32], position: int) -> bool:
        """Write to ``row`` [W] what can be sampled at output ``position``; return whether anything can."""
        start = time.thread_time()
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._observe(time.thread_time() - start)
        if self._kept_out and not matcher.is_accepting():
            for eos in self._kept_out:
                row[eos // 32] &= ~np.uint32(1 << eos % 32)
        if matcher.is_error():
            error = self._error(matcher)
            self._fail(position, _DEAD_END if "NoExtension" in error else f"{_CANNOT_FOLLOW}: {error}")
        elif not row.any() or (matcher.is_stopped() and not matcher.is_accepting()):
            self._fail(position, _DEAD_END)
        elif (token := _only(row)) is not None and not self._admits(matcher, token):
            self.forces_marker = True
            self._fail(position, f"{_CANNOT_FOLLOW}: what must come spells token {token}, which has another meaning")
        else:
            return True
        row.fill(ALL)
        return False

    def _admits(self, matcher: LLMatcher, token: int) -> bool:
        if token in self._eos_token_ids and matcher.is_accepting():
            return True
        return matcher.validate_tokens([token]) == 1

    def _error(self, matcher: LLMatcher) -> str:
        """Why ``matcher`` failed, in llguidance's words. Sets ``lexer_is_full``."""
        error = matcher.get_error().partition("\n")[0]
        self.lexer_is_full = _LEXER in error
        return error.removeprefix("Parser Error: ")

    def _fail(self, position: int, problem: str) -> None:
        self.failed_at, self.problem = position, problem


def _only(row: npt.NDArray[np.uint32]) -> int | None:
    """The token that ``row`` allows, if it is only one."""
    words = np.flatnonzero(row)
    if len(words) != 1:
        return None
    word = int(row[words[0]])
    return None if word & (word - 1) else 32 * int(words[0]) + word.bit_length() - 1
