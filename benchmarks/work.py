"""The work of one round, the same for all engines. Imports only the standard library, because every engine's own
interpreter imports it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

_FIRST_ID, _PAST_LAST_ID = 100, 15_000
"""Range of prompt ids: within the vocabulary of every shape, and above the special tokens."""

WORDS = (
    "self", "return", "if", "for", "in", "not", "is", "import", "def", "class", "None", "the", "to", "of", "and", "a",
    "name", "value", "with", "from",
)  # fmt: skip
"""Words that are one token each for a tokenizer trained on Python code."""


@dataclass(frozen=True, slots=True)
class Work:
    """``batch`` sequences that begin together: ``prompt`` tokens in, exactly ``output`` tokens out, greedy unless
    ``temperature`` says otherwise.
    """

    batch: int
    prompt: int
    output: int
    seed: int = 0
    """Seed of the prompts. Each round has its own, or it would find earlier prompts in a prefix cache."""
    shared: int = 0
    """Number of leading prompt tokens that all sequences share, in all works with the same ``shared_seed``."""
    shared_seed: int = 0
    json_schema: str = ""
    """What the output must fit; empty: anything. No answer to it may end before ``output`` tokens."""
    given: Sequence[Sequence[int]] = ()
    """Prompts in place of random ones; ``prompt`` is then the length of the longest."""
    ends: bool = False
    """Whether answers end where the model ends them, at ``output`` tokens at the latest."""
    temperature: float = 0.0
    adapters: Sequence[str] = ()
    """The directory of each prompt's adapter, or ""; (): no prompt has one."""
    calls: int = 1
    """How often an embedder is called, each time with ``batch`` other texts."""

    def prompts(self) -> list[list[int]]:
        """Token ids of the prompts."""
        if self.given:
            return [list(prompt) for prompt in self.given]
        rng = random.Random(f"prompts {self.seed}")  # not the number: Random uses only its absolute value
        ids = range(_FIRST_ID, _PAST_LAST_ID)
        shared = random.Random(f"shared {self.shared_seed}").choices(ids, k=self.shared)
        return [shared + rng.choices(ids, k=self.prompt - self.shared) for _ in range(self.batch)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a round."""

    seconds: float
    cached_tokens: int = 0
    """Prompt tokens found in a prefix cache, over all sequences."""
    token_ids: list[list[int]] = field(default_factory=list)
    """The answers, from engines that take prompts that are ``given``."""
    decode_seconds: float = 0.0
    """From the first token of the last sequence that got one to the last token of all; from the same engines."""
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    vector: list[float] = field(default_factory=list)
    """The first text's, from embedders."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A point of an engine's start, on the clock that all processes of the machine share."""

    name: str
    """The stage that has just been finished."""
    at: float
    """``time.monotonic()``"""


def text_of(prompt: Sequence[int]) -> str:
    """A text of about as many tokens as ``prompt``, for servers that accept no ids."""
    return " ".join(WORDS[token_id % len(WORDS)] for token_id in prompt)
