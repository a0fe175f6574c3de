"""One step as data: the ``StepPlan`` a scheduler makes, the ``StepResult`` workers return, and the
``SequenceOutput`` a caller sees.

A *sequence* is one choice of one request. Workers keep per-sequence state (tokens, block table, sampling
parameters) from the plan that introduced it until one releases it, so a plan carries only what changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_core.logprobs import Logprobs
from engine_core.request import Finish, SamplingParams


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that workers see for the first time, or again after a preemption."""

    seq_id: int
    """Unique for the engine's life; a preempted sequence comes back under the same id."""
    choice: int
    token_ids: list[int]
    """Prompt, then output so far."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """How many leading tokens have their keys and values in the cache (prefix hits)."""
    block_ids: list[list[int]]
    """For each group of the KV cache; ``NO_BLOCK`` for blocks that no later token reads."""
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to compute in one step. Lists ``seq_ids``, ``num_tokens`` and ``samples`` are aligned."""

    step_id: int
    released: list[int]
    """Sequences whose worker state goes before anything else happens: finished or preempted."""
    new: list[NewSequence]
    """Introduced in this step; each is also in ``seq_ids``."""
    seq_ids: list[int]
    """The batch, in order."""
    num_tokens: list[int]
    """≥ 1: tokens to compute, following those computed so far."""
    samples: list[bool]
    """True where the tokens reach the sequence's end, so that a next token is sampled."""
    new_block_ids: dict[int, list[list[int]]]
    """seq_id → blocks appended to its table of each group, for sequences that are not in ``new``."""
    draft_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """seq_id → tokens that may come next, for sequences that sample. They are computed too, and counted in
    ``num_tokens``; a token is sampled after each. Such a sequence is in no further plan until the result is in."""

    @property
    def total_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(self.num_tokens)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed. Lists are aligned with the plan's ``seq_ids``."""

    step_id: int
    token_ids: list[list[int]]
    """Tokens sampled; empty where the plan did not sample. More than one where drafts were accepted: the leading drafts
    that equal what was sampled in their places, and the token after them."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """seq_id → one entry per token, where asked for."""
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """seq_id → entries for the prompt positions whose successors were computed in this step: a chunk
    that computed prompt positions [a, b) yields the entries of tokens a+1 … min(b, prompt length − 1)."""


@dataclass(slots=True)
class SequenceOutput:
    """News of one choice after a step: tokens, an end, or prompt progress."""

    request_id: str
    choice: int
    first_position: int
    """Output position of ``token_ids[0]``; resumed tokens count."""
    token_ids: list[int]
    logprobs: Logprobs | None
    """One per token; None when not asked for, or without tokens."""
    finish: Finish | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set once, on the first output after admission."""
    prefilled_tokens: int | None = None
    """Prompt tokens computed so far, on outputs of a prompt that takes several steps."""
    queue_seconds: float | None = None
    """Time from being added to being first scheduled; set with ``cached_tokens``."""
    prompt_logprobs: Logprobs | None = None
    """Further entries for prompt tokens 1…, as they are computed; each comes once, all before the first token."""
