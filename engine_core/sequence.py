"""The scheduler's state of a request (``SequenceGroup``) and of each of its choices (``Sequence``)."""

from __future__ import annotations

import enum
import sys
from bisect import bisect_left
from dataclasses import InitVar, dataclass, field, replace

from engine_core.beam_search import Candidates, Search
from engine_core.config import ModelSpec
from engine_core.kv_cache_interface import NO_STATE
from engine_core.media import Picture, Placeholder, embedding_key
from engine_core.pooling.inputs import InputRequest
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
    """Not in the queue: waits for its group's leader to compute the prompt."""
    IDLE = enum.auto()
    """Not in the queue: a beam that was preempted while it waits for its group's other beams."""
    RUNNING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class HeldStates:
    """The state slots of a running sequence (``kv_cache.state_slots``)."""

    working: int
    source: int
    """The slot of the state after ``num_computed`` tokens, which the next step reads; ``NO_STATE``: zeros."""
    branch_at: int
    """Where cached blocks of the prompt end behind the state that the sequence started from; 0: not behind it."""
    newest: int | None
    """The slot of the sequence's newest snapshot in its output."""
    followed: int | None = None
    """The snapshot that the sequence started from, if that belongs to its trail now."""
    awaited: bytes | None = None
    """The hash of the block that ends at ``branch_at``, while others wait for that snapshot."""

    @property
    def source_is_held(self) -> bool:
        """Whether the source has a hold of its own."""
        return self.source not in (NO_STATE, self.working)

    @property
    def slots(self) -> list[int]:
        """All that are held."""
        return [self.working, self.source] if self.source_is_held else [self.working]


@dataclass(slots=True, eq=False, repr=False)
class SequenceGroup:
    """One request. Its choices share the blocks that the prompt fills.

    The *leader* is the choice that computes the prompt. Once it has passed ``share_at`` tokens, the group itself holds
    the shared blocks while any choice waits to start from them.
    """

    request: Request
    model: InitVar[ModelSpec]
    queued_at: float
    block_size: InitVar[int]
    priority: int
    tenant: str

    num_prompt_tokens: int = field(init=False)
    placeholders: tuple[Placeholder, ...] = field(init=False)
    """The prompt's pictures, by ascending offset."""
    _whole: tuple[Placeholder, ...] = field(init=False)
    """Those of them inside of which nothing may begin or end."""
    stop_ids: frozenset[int] = field(init=False)
    """Tokens that end a choice once it has ``min_tokens`` tokens."""
    final_ids: frozenset[int] = field(init=False)
    """Tokens that end a choice at any length: with a grammar, which admits them only at its end, every eos token."""
    min_tokens: int = field(init=False)
    max_output: int = field(init=False)
    max_computed: int = field(init=False)
    """Most computed tokens per choice: the last output token is sampled, but not computed."""
    cost: int = 0
    """Most tokens that prompt and outputs may have: charged to the request's tenant."""
    queue_seconds: float | None = None
    """Seconds until its first admission; set from then until reported."""
    admission: int | None = None
    """Sequence number of the request's first admission; None before it."""
    unstarted: list[int] = field(default_factory=list)
    """Choices without a sequence: until admission, one sequence stands for all choices."""
    members: dict[int, Sequence] = field(default_factory=dict)
    """Choices that have a sequence and have not ended."""
    pending: list[Sequence] = field(default_factory=list)
    num_running: int = 0
    leader: Sequence | None = None

    num_shared_blocks: int = field(init=False)
    shared_blocks: BlockTables | None = None
    shared_state: int = NO_STATE
    """The slot of the state behind the shared blocks, held from the time when the leader has left it."""
    shared_generation: int = 0
    """The prefix cache's generation when the computation of ``shared_blocks`` began."""
    prompt_hashes: list[bytes] | None = None

    num_prompt_logprobs: int = 0
    """Number of prompt log probabilities that the leader has computed."""
    reported_prompt_logprobs: int = 0
    """Number of prompt log probabilities reported, by this leader or a predecessor."""
    share_at: int = field(init=False)
    plain_params: SamplingParams = field(init=False)
    """The parameters without prompt log probabilities, for sequences that need not report them."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set from the first admission until reported."""
    prefilled_tokens: int = 0
    """The prompt progress last reported."""
    has_news: bool = True
    """Whether the next output may have to report about the prompt."""
    beams: Search | None = None
    """None: choices are sampled. Else ``members`` are beams, and the choices are what the search finds."""
    pooled: InputRequest | None = None
    """The request, if it is an input that is pooled; None: tokens are generated."""
    looks_up_prefix: bool = field(init=False)
    """Whether cached blocks may take the place of its first tokens, whose hidden states nobody then needs."""

    def __post_init__(self, model: ModelSpec, block_size: int) -> None:
        params = self.plain_params = self.request.params
        self.num_prompt_tokens = len(self.request.prompt_token_ids)
        salt = self.request.cache_salt
        self.placeholders = tuple(
            Placeholder(embedding_key(item.picture.digest, salt), item.offset, item.picture.shape)
            for item in self.request.media
        )
        both_ways = model.vision is not None and model.vision.attends_both_ways
        self._whole = self.placeholders if both_ways else ()
        self.stop_ids = params.stop_token_ids
        self.final_ids = frozenset() if params.grammar is None else frozenset(model.eos_token_ids)
        if not params.ignore_eos:
            self.stop_ids = self.stop_ids.union(model.eos_token_ids)
        self.min_tokens = params.min_tokens
        self.max_output = min(params.max_tokens, model.max_model_len - self.num_prompt_tokens)
        self.looks_up_prefix = True
        if isinstance(self.request, InputRequest):
            self.pooled, self.max_output = self.request, 1
            facts, task = model.pooling, self.pooled.pooling.task
            self.looks_up_prefix = facts is not None and facts.reads_last and not task.per_token
        self.max_computed = self.num_prompt_tokens + self.max_output - 1
        if params.beam_search is not None:
            self.beams = Search(params.beam_search, sorted(self.request.resume) or range(params.n), self.max_output)
        # Each choice computes at least one token, because sampling needs its logits.
        self.num_shared_blocks = self.whole_blocks((self.num_prompt_tokens - 1) // block_size, block_size)
        self.share_at = self.num_shared_blocks * block_size
        if params.prompt_logprobs is not None:
            self.plain_params = replace(params, prompt_logprobs=None)
            # A choice that starts from shared blocks cannot report prompt log probabilities: the leader computes all.
            self.share_at = self.num_prompt_tokens - 1

    @property
    def request_id(self) -> str:
        """The id by which outputs name it."""
        return self.request.request_id if self.pooled is None else self.pooled.whole.request_id

    def reported(self, choice: int) -> int:
        """The number by which outputs name a choice."""
        return choice if self.pooled is None else self.pooled.choice

    def whole_blocks(self, num_blocks: int, block_size: int) -> int:
        """``num_blocks``, or fewer: so many leading blocks that none ends inside a picture that must stay whole."""
        if not self._whole:
            return num_blocks
        while num_blocks:
            end = num_blocks * block_size
            index = bisect_left(self._whole, end, key=lambda place: place.offset) - 1
            if index < 0 or self._whole[index].end <= end:
                break
            num_blocks = self._whole[index].offset // block_size
        return num_blocks

    def picture_at(self, offset: int) -> Picture:
        """The picture whose first token is at ``offset``."""
        media = self.request.media
        return media[bisect_left(media, offset, key=lambda item: item.offset)].picture

    @property
    def end_of_pictures(self) -> int:
        """Index behind the last token of the last picture; 0 without pictures."""
        return self.placeholders[-1].end if self.placeholders else 0

    @property
    def speculates(self) -> bool:
        """Whether drafters may propose tokens: not for beams, whose search chooses them."""
        return self.request.speculation and self.beams is None

    @property
    def is_live(self) -> bool:
        """Whether a choice has not ended."""
        return bool(self.unstarted or self.members)

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
        """Whether prompt log probabilities are requested, and not all reported."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and self.reported_prompt_logprobs < self.num_prompt_tokens - 1


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """One choice: its output, its block tables, and its number of computed tokens.

    ``num_computed`` counts tokens as soon as a step that computes them is planned. ``num_tokens`` counts prompt and
    output, including pending tokens, which a planned step samples (``output`` gets them when the results arrive). There
    are no prefill and decode phases: ``num_computed`` catches up with ``num_tokens``. Both count drafts as accepted
    until the results arrive, and rejected drafts are rolled back.
    """

    seq_id: int
    group: SequenceGroup
    choice: int
    state: SequenceState
    output: list[int] = field(init=False)
    num_tokens: int = field(init=False)
    rank: tuple[int, int, int] = field(init=False)
    """A smaller rank is served first and preempted last; fixed when the group is first admitted."""
    num_computed: int = 0
    block_tables: BlockTables = field(default_factory=list)
    first_blocks: list[int] = field(default_factory=list)
    """Number of leading entries of each table that are ``NO_BLOCK``."""
    capacity: int = 0
    """Number of tokens for which every block table has room."""
    states: HeldStates | None = None
    """None: no layer keeps a state, or the sequence does not run."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Hash chain over the leading full blocks, computed as far as needed."""
    num_published: int = 0
    """Leading blocks that are published to the prefix cache."""
    generation: int = 0
    """The prefix cache's generation when the computation of ``block_tables`` began."""
    watch_at: int = NEVER
    """The number of computed tokens at which a block must be published or freed, or a prompt shared."""
    last_step: int | None = None
    """Id of the last step in which this sequence was planned."""
    drafts: list[int] = field(default_factory=list)
    """Tokens that will probably follow the known ones."""
    is_proposed: bool = False
    """Whether a drafter proposed the drafts; else a grammar forces them."""
    drafts_come_true: int | None = None
    """Correct drafts that a grammar forces since the last wrong one; None if none was wrong."""
    is_drafted: bool = False
    """Whether a step in flight computes its drafts, or proposes some; until the results arrive, it is planned in no
    other step."""
    partial_picture: bytes | None = None
    """The key of the picture of which the steps so far compute a part of the rows (``scheduling.encoder_cache``)."""
    candidates: Candidates | None = None
    """Of a beam: what may follow it, once the row after its tokens is computed, until the search goes on."""
    grammar_seconds: float = 0.0
    """Time that its grammar took in its last step, if slow, or may take in its first (``scheduling.pacing``)."""

    def __post_init__(self) -> None:
        resumed = () if self.group.beams is not None else self.group.request.resume.get(self.choice, ())
        self.output = list(resumed)
        self.num_tokens = self.group.num_prompt_tokens + len(self.output)
        self.rank = (self.group.priority, self.group.admission or 0, self.choice)

    @property
    def num_pending(self) -> int:
        """Number of tokens that steps in flight sample, if all drafts are accepted."""
        return self.num_tokens - self.num_known

    @property
    def has_pending_token(self) -> bool:
        """Whether a step in flight samples a token."""
        return self.num_tokens > self.num_known

    @property
    def num_known(self) -> int:
        """Number of tokens known to the scheduler: prompt and output."""
        return self.group.num_prompt_tokens + len(self.output)

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions ``start … stop − 1``."""
        prompt = self.group.request.prompt_token_ids
        border = len(prompt)
        if stop <= border:
            return prompt[start:stop]
        tail = tuple(self.output[max(start - border, 0) : stop - border])
        return prompt[start:] + tail
