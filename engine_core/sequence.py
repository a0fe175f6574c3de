"""What the scheduler remembers of a request (``SequenceGroup``) and of each of its choices (``Sequence``)."""

from __future__ import annotations

import enum
import sys
from dataclasses import replace

from engine_core.config import ModelSpec
from engine_core.request import Request, SamplingParams

NEVER = sys.maxsize
"""A position no sequence reaches."""

BlockTables = list[list[int]]
"""Block ids in order, for each group of the KV cache."""


class SequenceState(enum.Enum):
    """Where a sequence is."""

    QUEUED = enum.auto()
    """In the waiting queue, never admitted; it stands for its whole group."""
    RETURNING = enum.auto()
    """In front of the waiting queue: preempted, or a choice whose prompt another choice has computed."""
    PENDING = enum.auto()
    """Off the queue until its group's leader has computed the prompt."""
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
        "deadline_entry",
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
        """``priority`` and ``tenant`` replace the request's own if given."""
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
        """The most tokens ever computed of a choice: the last one there may be is sampled, but not computed."""
        self.cost = 0
        """Tokens this request may come to, prompt and outputs: what its tenant pays for it."""
        self.queued_at = now
        self.queue_seconds: float | None = None
        """Seconds until its first admission; set from then until reported."""
        self.admission: int | None = None
        """Number of its first admission, None before."""
        self.unstarted: list[int] = []
        """Choices without a sequence yet: until admission one sequence stands for all of them."""
        self.members: dict[int, Sequence] = {}
        """Choices that have a sequence and have not ended."""
        self.pending: list[Sequence] = []
        self.num_running = 0
        self.leader: Sequence | None = None
        self.deadline_entry: int | None = None
        """Number of its entry among the deadlines, if it has one."""

        # At least one token is left to each choice to compute, since logits come from nowhere else.
        self.num_shared_blocks = (self.num_prompt_tokens - 1) // block_size
        self.shared_blocks: BlockTables | None = None
        self.shared_generation = 0
        """The generation of the prefix cache that ``shared_blocks`` build on."""
        self.prompt_hashes: list[bytes] | None = None

        self.num_prompt_scores = 0
        """How many log probabilities of prompt tokens the choice that computes the prompt has computed."""
        self.prompt_scores_told = 0
        """How many have been reported, by it or by a predecessor."""
        self.share_at = self.num_shared_blocks * block_size
        self.plain_params = params
        """For sequences that need not report prompt log probabilities."""
        if params.prompt_logprobs is not None:
            self.plain_params = replace(params, prompt_logprobs=None)
            # A choice that starts from shared blocks cannot report on the prompt, so it must be complete by then.
            self.share_at = self.num_prompt_tokens - 1
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache; set from the first admission until reported."""
        self.prefilled_tokens = 0
        """Prompt progress last reported."""
        self.has_news = True
        """Whether an output may have to carry something about the prompt."""

    @property
    def num_waiting(self) -> int:
        """Choices that are not running and have not ended."""
        return len(self.unstarted) + len(self.members) - self.num_running

    @property
    def params(self) -> SamplingParams:
        """What the next admitted choice is to be computed with."""
        return self.request.params if self.scores_prompt else self.plain_params

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of the prompt are asked for and not all reported."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and self.prompt_scores_told < self.num_prompt_tokens - 1


class Sequence:
    """One choice: its output, its place in the KV cache, and how far it is computed.

    ``num_computed`` counts tokens as soon as a step that computes them is planned; ``num_tokens`` counts prompt and
    output, including pending tokens, which a planned step samples (``output`` has them when the results are in). There
    is no prefill and no decode, only ``num_computed`` chasing ``num_tokens``. Both count drafts as accepted until the
    results are in and rejected ones are rolled back.
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
        """Smaller is served first and preempted last; fixed when the group is first admitted."""
        self.num_computed = 0
        self.block_tables: BlockTables = []
        self.first_blocks: list[int] = []
        """How many leading entries of each table are ``NO_BLOCK``."""
        self.capacity = 0
        """How many tokens all of ``block_tables`` have room for."""
        self.block_hashes: list[bytes] = []
        """Hash chain over the leading full blocks, as far as it was needed."""
        self.num_published = 0
        """Leading blocks that are published to the prefix cache."""
        self.generation = 0
        """The generation of the prefix cache that ``block_tables`` build on."""
        self.watch_at = NEVER
        """The number of computed tokens at which there is a block to publish or to free, or a prompt to share."""
        self.last_step: int | None = None
        """The last step this sequence was planned in."""

    @property
    def has_pending_token(self) -> bool:
        """Whether a step in flight samples a token for it."""
        return self.num_tokens > self.num_known

    @property
    def num_known(self) -> int:
        """Tokens that the scheduler knows: prompt and output."""
        return self.group.num_prompt_tokens + len(self.output)

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions ``start … stop − 1``."""
        prompt = self.group.request.prompt_token_ids
        border = len(prompt)
        if stop <= border:
            return prompt[start:stop]
        tail = tuple(self.output[max(start - border, 0) : stop - border])
        return prompt[start:] + tail
