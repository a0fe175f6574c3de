"""The scheduler's state of a request (``SequenceGroup``) and of each of its choices (``Sequence``)."""

from __future__ import annotations

import enum
import sys
from dataclasses import replace

from engine_core.config import ModelSpec
from engine_core.request import Request, SamplingParams

NEVER = sys.maxsize
"""A position that no sequence reaches."""

BlockTables = list[list[int]]
"""Block ids in order, for each group of the KV cache."""


class SequenceState(enum.Enum):
    """The scheduling state of a sequence."""

    QUEUED = enum.auto()
    """In the waiting queue, never admitted; the sequence stands for its whole group."""
    RETURNING = enum.auto()
    """At the front of the waiting queue: preempted, or a choice whose prompt another choice has computed."""
    PENDING = enum.auto()
    """Not in the queue: waits until its group's leader has computed the prompt."""
    RUNNING = enum.auto()
    ENDED = enum.auto()


class SequenceGroup:
    """One request. Its choices share the blocks that the prompt fills.

    The *leader* is the choice that computes the prompt. Once it has passed ``share_at`` tokens, the group itself
    holds the shared blocks for as long as a choice still waits to start from them.
    """

    __slots__ = (
        "admission",
        "cached_tokens",
        "cost",
        "has_news",
        "leader",
        "max_computed",
        "max_output",
        "members",
        "min_tokens",
        "num_prompt_scores",
        "num_prompt_tokens",
        "num_running",
        "num_shared_blocks",
        "pending",
        "plain_params",
        "prefilled_tokens",
        "priority",
        "prompt_hashes",
        "prompt_scores_told",
        "queue_seconds",
        "queued_at",
        "request",
        "share_at",
        "shared_blocks",
        "shared_generation",
        "stop_ids",
        "tenant",
        "unstarted",
    )

    def __init__(
        self,
        request: Request,
        model: ModelSpec,
        now: float,
        *,
        block_size: int,
        priority: int | None,
        tenant: str | None,
    ) -> None:
        """``priority`` and ``tenant``, if given, replace those of the request."""
        params = request.params
        self.request = request
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.priority = request.priority if priority is None else priority
        self.tenant = request.tenant if tenant is None else tenant
        self.stop_ids = params.stop_token_ids
        if not params.ignore_eos:
            self.stop_ids = self.stop_ids.union(model.eos_token_ids)
        self.min_tokens = params.min_tokens
        self.max_output = min(params.max_tokens, model.max_model_len - self.num_prompt_tokens)
        self.max_computed = self.num_prompt_tokens + self.max_output - 1
        """The most tokens that are computed of a choice: the last output token is sampled, but not computed."""
        self.cost = 0
        """Tokens that the request may have, prompt and outputs: its tenant is charged this many."""
        self.queued_at = now
        self.queue_seconds: float | None = None
        """Seconds until its first admission; set from then until reported."""
        self.admission: int | None = None
        """Sequence number of the request's first admission; None before it."""
        self.unstarted: list[int] = []
        """Choices without a sequence so far: until admission one sequence stands for all choices."""
        self.members: dict[int, Sequence] = {}
        """Choices that have a sequence and have not ended."""
        self.pending: list[Sequence] = []
        self.num_running = 0
        self.leader: Sequence | None = None

        # Each choice computes at least one token, because sampling needs its logits.
        self.num_shared_blocks = (self.num_prompt_tokens - 1) // block_size
        self.shared_blocks: BlockTables | None = None
        self.shared_generation = 0
        """The prefix cache's generation when the computation of ``shared_blocks`` began."""
        self.prompt_hashes: list[bytes] | None = None

        self.num_prompt_scores = 0
        """Number of prompt log probabilities that the leader has computed."""
        self.prompt_scores_told = 0
        """Number of prompt log probabilities that were reported, by this leader or a predecessor."""
        self.share_at = self.num_shared_blocks * block_size
        self.plain_params = params
        """The parameters without prompt log probabilities, for sequences that need not report them."""
        if params.prompt_logprobs is not None:
            self.plain_params = replace(params, prompt_logprobs=None)
            # A choice that starts from shared blocks cannot report prompt log probabilities, so all must be computed.
            self.share_at = self.num_prompt_tokens - 1
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache; set from the first admission until reported."""
        self.prefilled_tokens = 0
        """The prompt progress that was last reported."""
        self.has_news = True
        """Whether the next output may have to report something about the prompt."""

    @property
    def num_waiting(self) -> int:
        """Choices that are not running and have not ended."""
        return len(self.unstarted) + len(self.members) - self.num_running

    @property
    def params(self) -> SamplingParams:
        """The parameters for the next admitted choice."""
        return self.request.params if self.scores_prompt else self.plain_params

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt log probabilities are requested and not all reported."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and self.prompt_scores_told < self.num_prompt_tokens - 1


class Sequence:
    """One choice: its output, its block tables, and its number of computed tokens.

    ``num_computed`` counts tokens as soon as a step that computes them is planned. ``num_tokens`` counts prompt and
    output, including pending tokens, which a planned step samples (``output`` gets them when the results arrive). There
    are no prefill and decode phases: ``num_computed`` catches up with ``num_tokens``. Both count drafts as accepted
    until the results arrive and rejected ones are rolled back.
    """

    __slots__ = (
        "block_hashes",
        "block_tables",
        "capacity",
        "choice",
        "first_blocks",
        "generation",
        "group",
        "last_step",
        "num_computed",
        "num_published",
        "num_tokens",
        "output",
        "rank",
        "seq_id",
        "state",
        "watch_at",
    )

    def __init__(self, seq_id: int, group: SequenceGroup, choice: int, state: SequenceState) -> None:
        self.seq_id = seq_id
        self.group = group
        self.choice = choice
        self.output: list[int] = list(group.request.resume.get(choice, ()))
        self.num_tokens = group.num_prompt_tokens + len(self.output)
        self.state = state
        self.rank: tuple[int, int, int] = (group.priority, group.admission or 0, choice)
        """A smaller rank is served first and preempted last; fixed when the group is first admitted."""
        self.num_computed = 0
        self.block_tables: BlockTables = []
        self.first_blocks: list[int] = []
        """Number of leading entries of each table that are ``NO_BLOCK``."""
        self.capacity = 0
        """Number of tokens for which each of ``block_tables`` has room."""
        self.block_hashes: list[bytes] = []
        """Hash chain over the leading full blocks, computed as far as needed."""
        self.num_published = 0
        """Leading blocks that are published to the prefix cache."""
        self.generation = 0
        """The prefix cache's generation when the computation of ``block_tables`` began."""
        self.watch_at = NEVER
        """The number of computed tokens at which there is a block to publish or to free, or a prompt to share."""
        self.last_step: int | None = None
        """Id of the last step that this sequence was planned in."""

    @property
    def has_pending_token(self) -> bool:
        """Whether a step in flight samples a token for it."""
        return self.num_tokens > self.num_known

    @property
    def num_known(self) -> int:
        """Number of tokens that the scheduler knows: prompt and output."""
        return self.group.num_prompt_tokens + len(self.output)

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions ``start … stop − 1``."""
        prompt = self.group.request.prompt_token_ids
        border = len(prompt)
        if stop <= border:
            return prompt[start:stop]
        tail = tuple(self.output[max(start - border, 0) : stop - border])
        return prompt[start:] + tail
