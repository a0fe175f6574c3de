"""A step, from the start of its planning until the scheduler has its results."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_core.errors import ExecutorError
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.kv_cache.state_slots import StateUse
from engine_core.media import Picture
from engine_core.sequence import BlockTables, Sequence
from engine_core.step import EncoderPlan, EncoderPortion, NewSequence, StatePlan, StepPlan, StepResult


@dataclass(slots=True, eq=False, repr=False)
class StepInFlight:
    """Collects a plan, then keeps the state that ``Scheduler.update`` needs for its results.

    Several steps may be in flight. A sequence that ends or is preempted meanwhile is *dropped* from them. Its blocks
    are released only with the last of these steps, as all of them still read and write the blocks.
    """

    step_id: int
    budget: int
    """Tokens that may still be planned."""
    short_of_blocks: bool = False
    """Whether a running sequence lacked blocks; if so, this step admits no sequence."""
    short_of_pictures: bool = False
    """Whether a sequence lacked embeddings; if so, this step admits no other that needs some."""
    sequences: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Number of computed tokens of each sequence after this step."""
    new: list[NewSequence] = field(default_factory=list)
    new_block_ids: dict[int, BlockTables] = field(default_factory=dict)
    draft_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """Drafts by seq_id."""
    proposals: dict[int, int] = field(default_factory=dict)
    """As in ``StepPlan``."""
    speculates: bool = False
    """Whether it computes a drafter's drafts, or asks for some."""
    dropped: set[int] = field(default_factory=set)
    """seq_ids whose results are ignored."""
    deferred: list[BlockTables] = field(default_factory=list)
    """Block tables to release when the step is over."""
    draft_slots: dict[int, list[int]] = field(default_factory=dict)
    """seq_id → slots of the states before each draft."""
    states: StatePlan | None = None
    """None: no layer keeps a state."""
    state_uses: dict[int, StateUse] = field(default_factory=dict)
    """seq_id → slots, of sequences that use others than their working slot."""
    deferred_states: list[int] = field(default_factory=list)
    """Slots to release when the step is over."""
    pictures: set[bytes] = field(default_factory=set)
    """Keys of the embeddings that the step reads, and holds until it is over."""
    forgotten_pictures: list[bytes] = field(default_factory=list)
    """As in ``EncoderPlan``."""
    encoded_pictures: list[tuple[bytes, Picture]] = field(default_factory=list)
    """As in ``EncoderPlan``."""
    portion: EncoderPortion | None = None
    """As in ``EncoderPlan``."""

    def add(self, seq: Sequence, num_tokens: int) -> None:
        """Plan to compute the next ``num_tokens`` of ``seq``, and to sample if that reaches its end."""
        end = seq.num_computed + num_tokens
        samples = end == seq.num_tokens
        if samples:
            seq.num_tokens += 1  # The pending token has its place: workers know it before the scheduler.
        seq.num_computed = end
        seq.last_step = self.step_id
        self.budget -= num_tokens
        self.sequences.append(seq)
        self.num_tokens.append(num_tokens)
        self.ends.append(end)
        self.samples.append(samples)

    def add_drafts(self, place: int, draft_token_ids: list[int]) -> None:
        """Plan drafts after the tokens of the sequence at ``place``; they count as accepted until ``roll_back``."""
        seq, count = self.sequences[place], len(draft_token_ids)
        seq.is_drafted = True
        self.speculates |= seq.is_proposed
        seq.num_computed += count
        seq.num_tokens += count
        self.budget -= count
        self.num_tokens[place] += count
        self.ends[place] += count
        self.draft_token_ids[seq.seq_id] = draft_token_ids

    def ask_for_drafts(self, place: int, most: int) -> None:
        """Ask for up to ``most`` drafts behind what the sequence at ``place`` samples."""
        seq = self.sequences[place]
        seq.is_drafted = self.speculates = True
        self.proposals[seq.seq_id] = most

    def plan_states(self, kv: KVCacheManager) -> None:
        """Plan the slots of all sequences' states; call after everything is added."""
        sources, targets, saves = list[int](), list[int](), dict[int, list[tuple[int, int]]]()
        for seq, count, end in zip(self.sequences, self.num_tokens, self.ends, strict=True):
            slot, use = kv.plan_state(seq, count, end, self.draft_slots.get(seq.seq_id, []))
            if use is None:
                sources.append(slot)
                targets.append(slot)
                continue
            sources.append(use.source)
            targets.append(use.target)
            self.state_uses[seq.seq_id] = use
            if use.saves:
                saves[seq.seq_id] = use.saves
        self.states = StatePlan(sources, targets, saves)

    def is_answered_by(self, result: StepResult) -> bool:
        """Whether ``result`` has tokens, or pooled numbers, for just the sequences that sample, except failed ones."""
        answers = [bool(token_ids) for token_ids in result.token_ids]
        if result.pooled and len(answers) == len(self.samples):
            answers = [seq.seq_id in result.pooled for seq in self.sequences]
        if result.failed and len(answers) == len(self.samples):
            for place, seq in enumerate(self.sequences):
                answers[place] |= self.samples[place] and seq.seq_id in result.failed
        return result.step_id == self.step_id and answers == self.samples

    def roll_back(self, token_ids: list[list[int]]) -> None:
        """Subtract rejected drafts from the counts, and let drafted sequences go on; ``token_ids``: the result's."""
        for place, seq in enumerate(self.sequences):
            if seq.seq_id in self.dropped:
                continue
            if seq.seq_id in self.proposals:
                seq.is_drafted = False
            drafts = self.draft_token_ids.get(seq.seq_id)
            if drafts is None:
                continue
            rejected = 1 + len(drafts) - len(token_ids[place])
            if rejected < 0:
                raise ExecutorError(f"step {self.step_id} sampled more tokens than its plan has rows for")
            seq.is_drafted = False
            seq.num_computed -= rejected
            seq.num_tokens -= rejected
            self.ends[place] -= rejected

    def append_blocks(self, seq: Sequence, added: BlockTables) -> None:
        """Add new blocks of ``seq``, which workers already have, to the plan."""
        if not any(added):
            return
        tables = self.new_block_ids.setdefault(seq.seq_id, [[] for _ in added])
        for table, more in zip(tables, added, strict=True):
            table.extend(more)

    def introduce(self, seq: Sequence) -> None:
        """Add ``seq`` to the plan as new to the workers; call before ``add``."""
        group, pooled = seq.group, seq.group.pooled
        self.new.append(
            NewSequence(
                seq_id=seq.seq_id,
                choice=group.reported(seq.choice),
                token_ids=[*group.request.prompt_token_ids, *seq.output],
                num_prompt_tokens=group.num_prompt_tokens,
                num_computed_tokens=seq.num_computed,
                block_ids=[list(table) for table in seq.block_tables],
                params=group.params,
                media=group.placeholders,
                pooling=None if pooled is None else pooled.pooling,
                second_text=None if pooled is None else pooled.second_text,
                adapter_id=None if (adapter := group.request.adapter) is None else adapter.adapter_id,
            )
        )

    def plan(self, released: list[int]) -> StepPlan:
        """The plan for the workers; ``released``: seq_ids that they must forget."""
        return StepPlan(
            step_id=self.step_id,
            released=released,
            new=self.new,
            seq_ids=[seq.seq_id for seq in self.sequences],
            num_tokens=self.num_tokens,
            samples=self.samples,
            new_block_ids=self.new_block_ids,
            draft_token_ids=self.draft_token_ids,
            proposals=self.proposals,
            states=self.states,
            encoder=self._encoder_plan(),
        )

    def _encoder_plan(self) -> EncoderPlan | None:
        if not (self.forgotten_pictures or self.encoded_pictures or self.portion):
            return None
        return EncoderPlan(self.forgotten_pictures, self.encoded_pictures, self.portion)
