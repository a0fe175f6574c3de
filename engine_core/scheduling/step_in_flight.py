"""A step from the moment the scheduler begins to plan it until its results are in."""

from __future__ import annotations

from engine_core.errors import ExecutorError
from engine_core.sequence import BlockTables, Sequence
from engine_core.step import NewSequence, StepPlan


class StepInFlight:
    """Collects a plan, then remembers what ``update`` must know about it.

    Several steps may be in flight. A sequence that ends or is preempted meanwhile is *dropped* from them, and its
    blocks come back only with the last of them, because that step still reads and writes them.
    """

    __slots__ = (
        "budget",
        "deferred",
        "draft_token_ids",
        "dropped",
        "ends",
        "new",
        "new_block_ids",
        "num_tokens",
        "samples",
        "sequences",
        "short_of_blocks",
        "step_id",
    )

    def __init__(self, step_id: int, budget: int) -> None:
        self.step_id = step_id
        self.budget = budget
        """Tokens that may still be planned."""
        self.short_of_blocks = False
        """A running sequence lacked blocks, so none is admitted in this step."""
        self.sequences: list[Sequence] = []
        self.num_tokens: list[int] = []
        self.samples: list[bool] = []
        self.ends: list[int] = []
        """How many tokens of each sequence are computed when this step is over."""
        self.new: list[NewSequence] = []
        self.new_block_ids: dict[int, BlockTables] = {}
        self.draft_token_ids: dict[int, list[int]] = {}
        """By seq_id."""
        self.dropped: set[int] = set()
        """seq_ids whose results are ignored."""
        self.deferred: list[BlockTables] = []
        """To be released when the step is over."""

    def add(self, seq: Sequence, num_tokens: int) -> None:
        """Compute the next ``num_tokens`` tokens of ``seq``, and sample one if that reaches its end."""
        end = seq.num_computed + num_tokens
        samples = end == seq.num_tokens
        if samples:
            seq.num_tokens += 1  # The pending token has its place from now on; workers know it before the scheduler.
        seq.num_computed = end
        seq.last_step = self.step_id
        self.budget -= num_tokens
        self.sequences.append(seq)
        self.num_tokens.append(num_tokens)
        self.ends.append(end)
        self.samples.append(samples)

    def extend(self, place: int, num_tokens: int) -> None:
        """Compute ``num_tokens`` more of the sequence at ``place``, whose end the step did not reach yet."""
        seq = self.sequences[place]
        seq.num_computed += num_tokens
        self.budget -= num_tokens
        self.num_tokens[place] += num_tokens
        self.ends[place] = seq.num_computed
        if seq.num_computed == seq.num_tokens:
            seq.num_tokens += 1
            self.samples[place] = True

    def add_drafts(self, place: int, draft_token_ids: list[int]) -> None:
        """Compute drafts after the sequence at ``place``, counted as accepted until ``roll_back``."""
        seq, count = self.sequences[place], len(draft_token_ids)
        seq.num_computed += count
        seq.num_tokens += count
        self.budget -= count
        self.num_tokens[place] += count
        self.ends[place] += count
        self.draft_token_ids[seq.seq_id] = draft_token_ids

    def roll_back(self, token_ids: list[list[int]]) -> None:
        """Take back drafts that were not accepted: ``token_ids`` are the step's result."""
        for place, seq in enumerate(self.sequences):
            drafts = self.draft_token_ids.get(seq.seq_id)
            if drafts is None or seq.seq_id in self.dropped:
                continue
            rejected = 1 + len(drafts) - len(token_ids[place])
            if rejected < 0:
                raise ExecutorError(f"step {self.step_id} sampled more tokens than its plan has rows for")
            seq.num_computed -= rejected
            seq.num_tokens -= rejected
            self.ends[place] -= rejected

    def append_blocks(self, seq: Sequence, added: BlockTables) -> None:
        """Tell workers about blocks that ``seq``, which they know, was given."""
        if not any(added):
            return
        tables = self.new_block_ids.setdefault(seq.seq_id, [[] for _ in added])
        for table, more in zip(tables, added, strict=True):
            table.extend(more)

    def introduce(self, seq: Sequence) -> None:
        """Tell workers about ``seq``; call it before ``add``."""
        group = seq.group
        self.new.append(
            NewSequence(
                seq_id=seq.seq_id,
                choice=seq.choice,
                token_ids=[*group.request.prompt_token_ids, *seq.output],
                num_prompt_tokens=group.num_prompt_tokens,
                num_computed_tokens=seq.num_computed,
                block_ids=[list(table) for table in seq.block_tables],
                params=group.params,
            )
        )

    def plan(self, released: list[int]) -> StepPlan:
        """The step as workers get it."""
        return StepPlan(
            step_id=self.step_id,
            released=released,
            new=self.new,
            seq_ids=[seq.seq_id for seq in self.sequences],
            num_tokens=self.num_tokens,
            samples=self.samples,
            new_block_ids=self.new_block_ids,
            draft_token_ids=self.draft_token_ids,
        )
