"""Texts and random walks over a grammar, on the bundled tokenizer."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from text_core.grammar.checker import GrammarChecker
from text_core.tokenizer import Tokenizer

BUNDLED = Path(__file__).parents[3] / "checkpoints" / "tiny"


@cache
def bundled() -> Tokenizer:
    return Tokenizer.from_directory(BUNDLED)


@cache
def checker() -> GrammarChecker:
    return GrammarChecker(bundled(), bundled().vocab_size, bundled().eos_token_ids)


@cache
def converted() -> LLTokenizer:
    return LLTokenizer(bundled().to_json(), eos_token=sorted(bundled().eos_token_ids))


class Compiled:
    """A grammar, ready to match; each method begins anew."""

    def __init__(self, grammar: str) -> None:
        self._matcher = LLMatcher(converted(), grammar, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def accepts(self, text: str) -> bool:
        matcher = self._matcher.deep_copy()
        ids = bundled().encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def walk(self, seed: int, free_tokens: int = 30, max_tokens: int = 600) -> str | None:
        """The text of random tokens that the mask allows, closing as soon as possible after ``free_tokens``.

        None if it did not end within ``max_tokens``.
        """
        choose = random.Random(seed)
        matcher = self._matcher.deep_copy()
        eos = bundled().eos_token_ids
        ids: list[int] = []
        while len(ids) < max_tokens:
            mask = matcher.compute_bitmask()
            assert not matcher.is_error(), matcher.get_error()
            allowed = [token for token in range(bundled().vocab_size) if mask[token >> 3] >> (token & 7) & 1]
            assert allowed, "nothing is allowed, not even the end"
            closing = [token for token in allowed if token in eos]
            if closing and (len(ids) >= free_tokens or len(closing) == len(allowed) or choose.random() < 0.2):
                return bundled().decode(ids, skip_special_tokens=False)
            others = [token for token in allowed if token not in eos]
            if len(ids) >= free_tokens:
                best = max(_closes(token) for token in others)
                others = [token for token in others if _closes(token) == best]
            ids.append(choose.choice(others))
            assert matcher.consume_token(ids[-1])
        return None


@cache
def _closes(token: int) -> int:
    text = bundled().token_bytes(token)
    return 2 if text[:1] in (b'"', b"}", b"]") else 1 if len(text) == 1 else 0
