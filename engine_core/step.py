"""The data of one step: the ``StepPlan`` that the scheduler makes, the ``StepResult`` that workers return, and the
``SequenceOutput`` that the caller gets.

A *sequence* is one choice of one request. Workers keep its state (tokens, block table, sampling parameters) from the
plan that introduces it until the one that releases it, so a plan carries only changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_core.logprobs import Logprobs
from engine_core.media import Picture, Placeholder
from engine_core.pooling.params import Pooled, PoolingParams
from engine_core.request import Finish, SamplingParams


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that is new to the workers, or comes back after a preemption."""

    seq_id: int
    """Unique for the engine's life; a preempted sequence keeps its id."""
    choice: int
    token_ids: list[int]
    """The prompt, followed by the output so far."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Number of leading tokens whose keys and values are in the cache (prefix hits)."""
    block_ids: list[list[int]]
    """Block table for each group of the KV cache; ``NO_BLOCK`` for blocks that no later token reads."""
    params: SamplingParams
    media: tuple[Placeholder, ...] = ()
    """The prompt's pictures, by ascending offset."""
    pooling: PoolingParams | None = None
    """How the prompt is pooled at its end, in place of sampling; None: tokens are sampled."""
    second_text: int | None = None
    """As in ``PoolingInput``."""
    adapter_id: int | None = None
    """The adapter of its rows, which workers have loaded; None: they have none."""


@dataclass(frozen=True, slots=True)
class EncoderPortion:
    """How far a step encodes a picture that is encoded over several steps, which follow each other."""

    key: bytes
    picture: Picture | None
    """None: the first portion brought it."""
    share: float
    """Of the picture's work, done after this step; 1: its embeddings are kept until they are forgotten."""


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """What a step does with pictures, before anything else: first it forgets, then it encodes."""

    forgotten: list[bytes]
    """Keys of embeddings that make room, and of a picture whose encoding is given up."""
    encoded: list[tuple[bytes, Picture]]
    """Keys of pictures, and these: their embeddings are kept until they are forgotten."""
    portion: EncoderPortion | None = None
    """None: the step encodes no part of a picture."""


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Where the states of a step's sequences are and go, for models whose layers keep states.

    The lists are aligned with the plan's ``seq_ids``. No slot that a sequence reads or writes belongs to another one of
    the step, except that several may read the same snapshot.
    """

    sources: list[int]
    """The slot of the state before the first row; ``NO_STATE``: zeros."""
    targets: list[int]
    """The slot that takes the state after the last row; it may be the source."""
    saves: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """seq_id → further (rows, slot), ascending: after this many of the sequence's rows the state goes to the slot, too.
    Snapshots at blocks' ends, and the states after rows that drafts may turn out to end at."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of one step. The lists ``seq_ids``, ``num_tokens`` and ``samples`` are aligned."""

    step_id: int
    released: list[int]
    """Sequences (finished or preempted) whose state workers drop first."""
    new: list[NewSequence]
    """Sequences introduced in this step; each is also in ``seq_ids``."""
    seq_ids: list[int]
    """The batch, in order."""
    num_tokens: list[int]
    """Number of tokens to compute, following those computed so far; at least 1."""
    samples: list[bool]
    """Whether the tokens reach the sequence's end, so that its next token is sampled."""
    new_block_ids: dict[int, list[list[int]]]
    """seq_id → blocks appended to its table of each group, for sequences not in ``new``."""
    draft_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """seq_id → drafts: proposed next tokens, for sequences that sample. They are computed, too, and counted in
    ``num_tokens``; a token is sampled after each. The sequence is in no other plan until the result has arrived."""
    proposals: dict[int, int] = field(default_factory=dict)
    """seq_id → the most drafts to compute after the tokens that the step samples, for sequences that sample."""
    forks: list[Fork] = field(default_factory=list)
    """Beams that go on otherwise than they were sampled."""
    copied_blocks: list[tuple[int, int]] = field(default_factory=list)
    """(source, target) of blocks to copy before the forward pass; no target is a source, or twice a target."""
    states: StatePlan | None = None
    """None: no layer keeps a state."""
    encoder: EncoderPlan | None = None
    """None: no picture is encoded or forgotten. The embeddings of every picture of which the step computes a row are
    kept, or encoded by it."""

    @property
    def total_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(self.num_tokens)


@dataclass(frozen=True, slots=True)
class Fork:
    """How a beam goes on after a row: with another beam's tokens, or its own, and with a token that the search chose
    instead of the sampled one.
    """

    seq_id: int
    """New to the workers, or known; then what it was is forgotten."""
    parent: int
    """The seq_id whose tokens and blocks it takes over, itself included. All forks of a plan happen at once, before
    anything else in it."""
    token_id: int
    """Takes the place of the parent's sampled token."""
    num_blocks: int = 0
    """Leading blocks of each of the parent's tables that it shares, unless it is its own parent."""
    block_ids: list[list[int]] = field(default_factory=list)
    """The blocks after these, for each table: ``StepPlan.copied_blocks`` fills them."""


SLOW_GRAMMAR = 0.005
"""Seconds in a step; with a vocabulary of 262,000, grammars that people write take up to 0.003."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing more can be sampled for a sequence."""

    problem: str
    """For the requester."""
    field: str | None = None
    """The request field at fault, if any."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step. Lists are aligned with the plan's ``seq_ids``."""

    step_id: int
    token_ids: list[list[int]]
    """Sampled tokens; empty if the plan did not sample. With drafts: the accepted drafts (the leading ones that equal
    the tokens sampled in their places), and the token after them."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """seq_id → one entry per sampled token, if requested."""
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """seq_id → entries of the prompt tokens predicted in this step: a chunk that computed prompt positions [a, b)
    yields those of tokens a+1 … min(b, prompt length − 1)."""
    draft_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """seq_id → drafts for the next step that a grammar forces."""
    proposed_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """seq_id → drafts for the next step that a drafter computed, where the plan has ``proposals`` and no grammar forces
    a token; as of ``Drafter.propose``."""
    failed: dict[int, Failure] = field(default_factory=dict)
    """By seq_id. Such a sequence's ``token_ids`` are those before the failure."""
    grammar_seconds: dict[int, float] = field(default_factory=dict)
    """seq_id → processor time of its grammar, if slow (``SLOW_GRAMMAR``): others had to wait."""
    pooled: dict[int, Pooled] = field(default_factory=dict)
    """seq_id → the result, for sequences that are pooled and whose end the plan reached (``samples``)."""


@dataclass(slots=True)
class SequenceOutput:
    """The output of one choice after a step: tokens, an end, or prompt progress."""

    request_id: str
    choice: int
    first_position: int
    """Output position of ``token_ids[0]``; resumed tokens count."""
    token_ids: list[int]
    logprobs: Logprobs | None
    """One entry per token; None if not requested, or without tokens."""
    finish: Finish | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set once, on the first output after admission."""
    prefilled_tokens: int | None = None
    """Prompt tokens computed so far, if the prompt takes several steps."""
    queue_seconds: float | None = None
    """Time from ``add`` to the first scheduling; set with ``cached_tokens``."""
    prompt_logprobs: Logprobs | None = None
    """Further entries for prompt tokens 1…, as they are computed; each is reported once, before the first token."""
    beam_score: float | None = None
    """The choice's score in a beam search, set with its tokens and ``finish``."""
    accepted_drafts: int = 0
    """Tokens of the choice that drafters proposed, besides those that a grammar forces; so far."""
    rejected_drafts: int = 0
    """Proposed tokens that were computed and are not in the output; so far."""
    pooled: Pooled | None = None
    """The input's result, with its ``finish``; None if tokens are generated."""
