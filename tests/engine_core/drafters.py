"""Drafters that know what will be sampled, and propose it, or something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

WAYS = ("right", "wrong", "half", "none")


class ScriptedDrafter:
    """Proposes what follows in one of ``texts``, as far as that goes, then tokens behind its end."""

    def __init__(self, texts: Callable[[], Iterable[list[int]]], vocab_size: int, way: str) -> None:
        """``way`` is one of ``WAYS``, or ``mixed``: one after the other."""
        self._texts = texts
        self._vocab_size = vocab_size
        self._way = way
        self.proposed = 0
        """Drafts."""
        self._calls = 0

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        self._calls += 1
        known = list(token_ids)
        count = min(max_tokens, 1 + self._calls % 5)
        following = next((text[len(known) :] for text in self._texts() if text[: len(known)] == known), [])
        following = [*following, *(at % self._vocab_size for at in range(count))][:count]
        way = WAYS[self._calls % len(WAYS)] if self._way == "mixed" else self._way
        wrong = {"right": count, "wrong": 0, "half": count // 2, "none": count}[way]
        if way == "none":
            return []
        self.proposed += count
        return [token if at < wrong else (token + 1) % self._vocab_size for at, token in enumerate(following)]
