"""What an engine is asked to do in one round, the same for all engines. Imports the standard library alone, because
every engine's own interpreter reads it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_FIRST_ID, _PAST_LAST_ID = 100, 15_000
"""Within the vocabulary of every shape, and past the special tokens."""

_WORDS = (
    "self", "return", "if", "for", "in", "not", "is", "import", "def", "class", "None", "the", "to", "of", "and", "a",
    "name", "value", "with", "from",
)  # fmt: skip
"""One token each, for a tokenizer trained on Python."""


@dataclass(frozen=True, slots=True)
class Work:
    """``batch`` sequences that begin together: ``prompt`` tokens in, exactly ``output`` tokens out, greedy."""

    batch: int
    prompt: int
    output: int
    seed: int = 0
    """Of the prompts. Each round has its own, or it would find the prompts of an earlier one in a prefix cache."""
    shared: int = 0
    """Leading prompt tokens that are the same in all sequences, and in all works of equal ``shared_seed``."""
    shared_seed: int = 0

    def prompts(self) -> list[list[int]]:
        """Token ids of the prompts."""
        rng = random.Random(f"prompts {self.seed}")  # a string: of a number, Python takes the absolute value
        ids = range(_FIRST_ID, _PAST_LAST_ID)
        shared = random.Random(f"shared {self.shared_seed}").choices(ids, k=self.shared)
        return [shared + rng.choices(ids, k=self.prompt - self.shared) for _ in range(self.batch)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round took."""

    seconds: float
    cached_tokens: int = 0
    """Prompt tokens that a prefix cache had, over all sequences."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A point of an engine's start, on the clock that all processes of the machine share."""

    name: str
    """What has just been finished."""
    at: float
    """``time.monotonic()``"""


def text_of(prompt: Sequence[int]) -> str:
    """Text of about as many tokens as there are ids, for servers that take no ids."""
    return " ".join(_WORDS[token_id % len(_WORDS)] for token_id in prompt)
