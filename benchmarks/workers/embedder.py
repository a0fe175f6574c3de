"""What the workers of embedding models share: texts in, the time of all calls and the first vector out."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.work import Outcome, Work, text_of
from benchmarks.worker import Engine

_SPECIAL_TOKENS = 2
"""Of the text's tokens, those that the tokenizer adds."""


def texts_of(work: Work) -> list[list[str]]:
    """The texts of every call: each of ``work.prompt`` tokens."""
    seeds = [work.seed * work.calls + call for call in range(work.calls)]
    inner = replace(work, prompt=work.prompt - _SPECIAL_TOKENS)
    return [[text_of(prompt) for prompt in replace(inner, seed=seed).prompts()] for seed in seeds]


class Embedder(Engine):
    """Turns texts into vectors of length 1."""

    @abstractmethod
    def embed(self, texts: list[str]) -> Sequence[Any]:
        """A vector for each text."""

    def run(self, work: Work) -> Outcome:
        calls = texts_of(work)
        begun = time.perf_counter()
        vectors = [self.embed(texts) for texts in calls]
        seconds = time.perf_counter() - begun
        if [len(each) for each in vectors] != [len(texts) for texts in calls]:
            raise RuntimeError("a text did not get its vector")
        return Outcome(seconds, vector=[float(number) for number in vectors[0][0]])
