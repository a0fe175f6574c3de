"""``grammar``: bans tokens that the sequence's grammar does not admit, and finds tokens that it forces."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine_core.errors import InvalidRequestError
from engine_core.request import SamplingParams
from engine_core.sampling.base import Array, Index, SamplingOps
from engine_core.sampling.logits_processors import Applies, LogitsProcessor, SamplingRows, Tokens
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.structured_output.matcher import ALL, Bits, Matcher


@dataclass(slots=True)
class _InGrammar:
    """A sequence's grammar and its matcher, which is made again if rejected drafts led to a dead end."""

    compiler: GrammarCompiler
    grammar: str
    matcher: Matcher
    seconds: float = 0.0
    """CPU time since the last report."""


@dataclass(frozen=True, slots=True)
class Following:
    """What may follow some output in its grammar."""

    drafts: list[int]
    """Tokens that the grammar forces."""
    failed_at: int | None = None
    """The output position at which nothing can be sampled; None if something can."""
    problem: str = ""
    """Why nothing can be sampled."""
    seconds: float = 0.0
    """CPU time that the grammar took for these tokens and the mask after them."""


class GrammarMask(LogitsProcessor[_InGrammar | None]):
    """If another rank samples, slots have None, and no row is masked here."""

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        if params.grammar is None:
            return None
        compiler = self._setup.grammars
        self._of_slot[slot] = None
        if compiler is not None:
            self._of_slot[slot] = _InGrammar(compiler, params.grammar, _matcher(compiler.matcher, params.grammar))
        return Applies(reads_tokens=True)

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        ops.mask(logits, chosen, self.allowed(rows, chosen)[chosen])

    def allowed(self, rows: SamplingRows, chosen: Index) -> Bits:
        """[R, ⌈V / 32⌉]: the tokens that may be sampled in ``chosen`` rows; in others, and after a failure, all.

        Of each sequence, ``chosen`` has either all of its rows in ``rows``, or none.
        """
        bits = np.full((len(rows.slots), -(-self._setup.vocab_size // 32)), ALL, np.uint32)
        for own in np.split(chosen, 1 + np.flatnonzero(np.diff(rows.slots[chosen]))):
            state = self._of_slot[int(rows.slots[own[0]])] if len(own) else None
            if state is not None:
                self._allow(state, rows, int(own[-1]), bits[own[0] : own[-1] + 1])
        return bits

    def _allow(self, state: _InGrammar, rows: SamplingRows, last: int, bits: Bits) -> None:
        """Write to ``bits`` what may be sampled in as many rows of a sequence, up to and including row ``last``."""
        output = rows.tokens_before(last)[rows.num_prompt_tokens[last] :]
        drafts = int(rows.num_drafts[last])
        certain = len(output) - drafts
        # If a batch is sampled in parts, the first row may come after drafts.
        allowed = bits if len(bits) == 1 + drafts else np.empty((1 + drafts, bits.shape[1]), np.uint32)
        draft_ids = output[certain:].tolist()
        self._follow(state, output[:certain], lambda matcher: matcher.allow(allowed, draft_ids))
        bits[:] = allowed[-len(bits) :]

    def follows(self, slot: int) -> bool:
        """Whether the slot's sequence has a grammar that is followed here."""
        return self._of_slot.get(slot) is not None

    def following(self, slot: int, output: Tokens, max_drafts: int) -> Following:
        """What may follow ``output``, all accepted, in a slot for which ``follows`` is true."""
        state = self._of_slot[slot]
        assert state is not None
        self._follow(state, output, lambda matcher: None)
        matcher, seconds = state.matcher, state.seconds
        state.seconds = 0.0
        if matcher.failed_at is not None:
            return Following([], matcher.failed_at, matcher.problem)
        return Following(matcher.forced(max_drafts), seconds=seconds)

    def _follow(self, state: _InGrammar, output: Tokens, use: Callable[[Matcher], None]) -> None:
        """``use`` the matcher after ``output``. If its lexer is full, which other sequences may have caused, retry with
        the lexer that new matchers share, then with a fresh one: so it fails only through its own tokens.
        """
        start = time.thread_time()
        self._use(state, output, use)
        state.seconds += time.thread_time() - start

    def _use(self, state: _InGrammar, output: Tokens, use: Callable[[Matcher], None]) -> None:
        self._catch_up(state, output)
        use(state.matcher)
        if state.matcher.forces_marker:
            state.grammar = state.compiler.unforced(state.grammar)
            self._use_another(state, state.compiler.matcher, output, use)
        for make in (state.compiler.matcher, state.compiler.fresh_matcher):
            if not state.matcher.lexer_is_full:
                return
            self._use_another(state, make, output, use)
        state.matcher.lexer_is_full = False  # not by others: this one has failed for good

    def _use_another(
        self, state: _InGrammar, make: Callable[[str], Matcher], output: Tokens, use: Callable[[Matcher], None]
    ) -> None:
        state.matcher = _matcher(make, state.grammar)
        state.matcher.advance(output.tolist())
        use(state.matcher)

    def _catch_up(self, state: _InGrammar, output: Tokens) -> None:
        matcher = state.matcher
        if matcher.failed_at is not None and len(output) <= matcher.failed_at > matcher.num_tokens:
            # Only rejected drafts led to the failure.
            matcher = state.matcher = _matcher(state.compiler.matcher, state.grammar)
        matcher.advance(output[matcher.num_tokens :].tolist())


def _matcher(make: Callable[[str], Matcher], grammar: str) -> Matcher:
    """For a grammar that is usually compiled already. A grammar that cannot be compiled admits nothing."""
    try:
        return make(grammar)
    except InvalidRequestError as error:
        return Matcher.failed(f"the grammar cannot be used: {error.problem}")
