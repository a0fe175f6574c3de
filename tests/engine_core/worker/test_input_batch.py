"""The persistent batch against a plain model of it: lists per sequence, rebuilt at every step."""

import random
from functools import reduce
from operator import or_

import numpy as np
import pytest

from engine_core.kv_cache_interface import group_layers
from engine_core.request import SamplingParams
from engine_core.sampling import metadata
from engine_core.sampling.logits_processors import BannedTokens, Penalties
from engine_core.step import NewSequence, StepPlan
from engine_core.worker.input_batch import BatchLimits, InputBatch, StepInputs

LIMITS = BatchLimits(6, 64, max_model_len=40, block_size=4, kv_cache_groups=group_layers([None, 8]))
VOCAB = 100
BANNED, PENALIZED = (metadata.processor_bit(kind) for kind in (BannedTokens, Penalties))
PARAMS = [
    (SamplingParams(temperature=0.0), 0),
    (SamplingParams(top_p=0.5), metadata.RANDOM | metadata.TOP_P),
    (SamplingParams(temperature=0.0, presence_penalty=1.0), PENALIZED | metadata.READS_TOKENS),
    (SamplingParams(temperature=0.0, prompt_logprobs=0), metadata.PROMPT_LOGPROBS),
    (SamplingParams(temperature=0.0, min_tokens=3), BANNED | metadata.EXPIRES),
    (SamplingParams(temperature=0.0, bad_words_token_ids=((1,),)), BANNED),
    (SamplingParams(temperature=0.0, bad_words_token_ids=((1,), (2, 3))), BANNED | metadata.READS_TOKENS),
]


class Sequence:
    """What the batch should know of a sequence."""

    def __init__(self, rng: random.Random) -> None:
        self.tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
        self.prompt = len(self.tokens)
        self.computed = rng.choice([0, max(0, (len(self.tokens) - 1) // 4 * 4)])
        self.advanced = False
        """Whether a step computed any of it since it was introduced."""
        self.blocks: list[list[int]] = [[], []]
        self.params, self._asks = rng.choice(PARAMS)

    @property
    def asks(self) -> int:
        """Not what is over: the log probabilities of a prompt that is computed, or a minimum that is reached."""
        over = metadata.PROMPT_LOGPROBS if self.advanced and self.computed >= self.prompt - 1 else 0
        if self._asks & metadata.EXPIRES and len(self.tokens) - self.prompt >= self.params.min_tokens:
            over |= BANNED | metadata.EXPIRES
        return self._asks & ~over

    def needed(self, length: int) -> int:
        return -(-length // LIMITS.block_size) - len(self.blocks[0])


class Driver:
    """Makes random plans, as a scheduler with preemption might, and checks the inputs made of each.

    Where ``late``, some steps are committed only when the next one has been prepared.
    """

    def __init__(self, seed: int, late: bool = False) -> None:
        self.rng = random.Random(seed)
        self.batch = InputBatch(LIMITS, VOCAB, [0])
        self.running: dict[int, Sequence] = {}
        self.preempted: dict[int, Sequence] = {}
        self.next_id = 0
        self.late = late
        self.fed = 0
        """Rows that took a token that was not committed."""
        self.pending = None
        """Inputs of the last step, what it sampled, and for whom."""

    def blocks(self, count: int) -> list[list[int]]:
        return [[self.rng.randrange(1000) for _ in range(count)] for _ in LIMITS.kv_cache_groups]

    def unheard(self) -> list[int]:
        """Sequences whose newest token is not committed."""
        return self.pending[2] if self.pending else []

    def may_be_planned(self, seq_id: int) -> bool:
        return True

    def release_some(self) -> list[int]:
        released = [seq_id for seq_id in self.running if self.rng.random() < 0.15]
        for seq_id in released:
            seq = self.running.pop(seq_id)
            if seq_id in self.unheard():
                seq.tokens.pop()  # nobody has heard of it
            if self.rng.random() < 0.5 and len(seq.tokens) < 39:
                seq.computed, seq.blocks = 0, [[], []]
                self.preempted[seq_id] = seq
        return released

    def introduce(self) -> NewSequence:
        if self.preempted and self.rng.random() < 0.5:
            seq_id, seq = self.preempted.popitem()
        else:
            seq_id, seq = self.next_id, Sequence(self.rng)
            self.next_id += 1
        seq.advanced = False
        seq.blocks = self.blocks(seq.needed(len(seq.tokens)))
        self.running[seq_id] = seq
        params = seq.params
        return NewSequence(
            seq_id, 0, list(seq.tokens), seq.prompt, seq.computed, [list(table) for table in seq.blocks], params
        )

    def step(self) -> None:
        released = self.release_some()
        for seq_id in [i for i, s in self.running.items() if len(s.tokens) == LIMITS.max_model_len]:
            released.append(seq_id)
            del self.running[seq_id]
        new = [self.introduce() for _ in range(self.rng.randint(0, LIMITS.max_num_seqs - len(self.running)))]
        if not any(map(self.may_be_planned, self.running)):
            new.append(self.introduce())
        fresh = {sequence.seq_id for sequence in new}
        order = [i for i in self.running if i in fresh or (self.may_be_planned(i) and self.rng.random() < 0.8)]
        order = order or [i for i in self.running if self.may_be_planned(i)]
        self.rng.shuffle(order)
        num_tokens, samples, added = [], [], {}
        for seq_id in order:
            seq = self.running[seq_id]
            pending = len(seq.tokens) - seq.computed
            count = self.rng.randint(1, min(pending, 10))
            num_tokens.append(count)
            samples.append(count == pending)
            if seq_id not in fresh and (more := seq.needed(seq.computed + count)) > 0:
                added[seq_id] = self.blocks(more)
                seq.blocks = [table + more for table, more in zip(seq.blocks, added[seq_id], strict=True)]
        self.check(StepPlan(0, released, new, order, num_tokens, samples, added))

    def check(self, plan: StepPlan) -> None:
        self.batch.update(plan)
        assert self.batch.sampling.asked == reduce(or_, (seq.asks for seq in self.running.values()), 0)
        inputs = self.batch.prepare(plan)
        rows = [
            (self.running[seq_id], position)
            for seq_id, count in zip(plan.seq_ids, plan.num_tokens, strict=True)
            for position in range(self.running[seq_id].computed, self.running[seq_id].computed + count)
        ]
        if self.pending:
            fed, indices = self.batch.pending_tokens(inputs, self.pending[0])
            inputs.input_ids.numpy()[fed] = self.pending[1][indices]
            self.fed += len(fed)
        assert inputs.input_ids.tolist() == [seq.tokens[position] for seq, position in rows]
        assert inputs.positions.tolist() == [position for _, position in rows]
        size = LIMITS.block_size
        for group, attention in enumerate(inputs.metadata):
            assert attention.group == group
            slots = [seq.blocks[group][p // size] * size + p % size for seq, p in rows]
            assert attention.slot_mapping.tolist() == slots
            assert attention.query_starts.tolist() == [0, *np.cumsum(plan.num_tokens).tolist()]
            lengths = [self.running[i].computed + n for i, n in zip(plan.seq_ids, plan.num_tokens, strict=True)]
            assert attention.seq_lens.tolist() == lengths
            assert (attention.max_query_len, attention.max_seq_len) == (max(plan.num_tokens), max(lengths))
            for seq_id, table, length in zip(plan.seq_ids, attention.block_tables.tolist(), lengths, strict=True):
                used = -(-length // size)
                assert table[:used] == self.running[seq_id].blocks[group][:used]
        self.commit()
        sampled = [seq_id for seq_id, samples in zip(plan.seq_ids, plan.samples, strict=True) if samples]
        rows_sampled = inputs.sampling_rows
        assert [plan.seq_ids[place] for place in inputs.sampled] == sampled
        assert rows_sampled.num_tokens.tolist() == [len(self.running[i].tokens) for i in sampled]
        assert rows_sampled.num_prompt_tokens.tolist() == [self.running[i].prompt for i in sampled]
        self.advance(plan, inputs, sampled)

    def advance(self, plan: StepPlan, inputs, sampled: list[int]) -> None:
        token_ids = [self.rng.randrange(VOCAB) for _ in sampled]
        self.batch.advance(inputs)
        self.pending = (inputs, np.array(token_ids, np.int64), sampled)
        for seq_id, count in zip(plan.seq_ids, plan.num_tokens, strict=True):
            self.running[seq_id].computed += count
            self.running[seq_id].advanced = True
        for seq_id, token in zip(sampled, token_ids, strict=True):
            self.running[seq_id].tokens.append(token)
        if not self.late or self.rng.random() < 0.3:
            self.commit()

    def commit(self) -> None:
        """The host learns what the last step sampled: the batch then knows all tokens."""
        if self.pending is None:
            return
        inputs, sampled, _ = self.pending
        self.pending = None
        assert self.batch.commit(inputs, sampled).all()
        for seq_id, seq in self.running.items():
            slot = self.batch._slot_of[seq_id]
            assert self.batch.token_ids[slot, : len(seq.tokens)].tolist() == seq.tokens


class Following(Driver):
    """A rank that is told some steps late what another one has sampled; until then no such sequence is in a step."""

    def __init__(self, seed: int, late: int) -> None:
        super().__init__(seed)
        self.steps_late = late
        self.due: list[tuple[StepInputs, np.ndarray, dict[int, Sequence]]] = []
        """Of each step, oldest first: inputs, tokens, and whose they are unless they were released since."""

    def unheard(self) -> list[int]:
        return [seq_id for _, _, whose in self.due for seq_id in whose]

    def may_be_planned(self, seq_id: int) -> bool:
        return seq_id not in self.unheard()

    def release_some(self) -> list[int]:
        released = super().release_some()
        for _, _, whose in self.due:
            for seq_id in released:
                whose.pop(seq_id, None)
        return released

    def step(self) -> None:
        while self.due and (len(self.due) > self.steps_late or not any(map(self.may_be_planned, self.running))):
            self.bring()
        super().step()

    def commit(self) -> None:
        if self.pending is not None:
            inputs, token_ids, sampled = self.pending
            self.pending = None
            self.due.append((inputs, token_ids, {seq_id: self.running[seq_id] for seq_id in sampled}))

    def bring(self) -> None:
        inputs, token_ids, whose = self.due.pop(0)
        self.batch.commit(inputs, token_ids)
        for seq_id, seq in whose.items():
            if seq_id in self.running:  # rather than full
                slot = self.batch._slot_of[seq_id]
                assert self.batch.token_ids[slot, : len(seq.tokens)].tolist() == seq.tokens


@pytest.mark.parametrize("late", [0, 1, 2])
def test_tokens_that_are_brought_steps_later_leave_the_batch_as_it_should_be(late: int) -> None:
    for seed in range(20):
        driver = Following(seed, late)
        most = 0
        for _ in range(60):
            driver.step()
            most = max(most, len(driver.due))
        assert most == late + 1


def test_inputs_equal_a_rebuilt_batch_through_random_lives() -> None:
    for seed in range(20):
        driver = Driver(seed)
        for _ in range(60):
            driver.step()
            assert len(driver.batch) == len(driver.running)


def test_a_step_can_be_prepared_before_the_tokens_of_the_one_before_it_are_known() -> None:
    """Its rows take them from the device; they are noted later, unless somebody else has taken the slot by then."""
    fed = 0
    for seed in range(20):
        driver = Driver(seed, late=True)
        for _ in range(60):
            driver.step()
        fed += driver.fed
    assert fed > 1000


def with_drafts() -> tuple[InputBatch, StepInputs]:
    """A step of a prompt, of a sequence with three drafts behind its 6 tokens, and of one that decodes."""
    batch = InputBatch(LIMITS, VOCAB, [0])
    params = SamplingParams(temperature=0.0, min_tokens=4)
    new = [
        NewSequence(0, 0, [1] * 9, 9, 0, [[1, 2, 3]] * 2, params),
        NewSequence(1, 0, [10, 11, 12, 13, 14, 15], 5, 4, [[4, 5, 6]] * 2, params),
        NewSequence(2, 0, [20, 21], 1, 0, [[7]] * 2, params),
    ]
    batch.commit(inputs := prepared(batch, StepPlan(0, [], new, [1], [1], [False], {})), np.empty(0, np.int64))
    assert not len(inputs.sampled)
    plan = StepPlan(1, [], [], [0, 1, 2], [4, 4, 2], [False, True, True], {}, {1: [16, 17, 18]})
    return batch, prepared(batch, plan)


def prepared(batch: InputBatch, plan: StepPlan) -> StepInputs:
    batch.update(plan)
    inputs = batch.prepare(plan)
    batch.advance(inputs)
    return inputs


def test_a_row_is_sampled_behind_the_last_token_and_behind_every_draft() -> None:
    _, inputs = with_drafts()
    assert inputs.input_ids.tolist() == [1] * 4 + [15, 16, 17, 18] + [20, 21]
    assert inputs.sampled.tolist() == [1, 1, 1, 1, 2]
    assert inputs.sampled_rows.tolist() == [4, 5, 6, 7, 9]
    rows = inputs.sampling_rows
    assert rows.num_tokens.tolist() == [6, 7, 8, 9, 2]
    assert rows.num_drafts.tolist() == [0, 1, 2, 3, 0]
    assert [rows.tokens_before(row).tolist()[5:] for row in range(4)] == [[*range(15, 16 + row)] for row in range(4)]


@pytest.mark.parametrize(
    ("sampled", "accepted"), [([16, 17, 18, 19], 4), ([16, 17, 3, 4], 3), ([16, 9, 18, 19], 2), ([9, 17, 18, 19], 1)]
)
def test_drafts_are_accepted_as_far_as_they_are_sampled(sampled: list[int], accepted: int) -> None:
    batch, inputs = with_drafts()
    kept = batch.commit(inputs, np.array([*sampled, 22]))
    assert kept.tolist() == [True] * accepted + [False] * (4 - accepted) + [True]
    plan = StepPlan(2, [], [], [1, 2], [1, 1], [True, True], {})
    inputs = prepared(batch, plan)
    assert inputs.input_ids.tolist() == [sampled[accepted - 1], 22]
    assert inputs.positions.tolist() == [5 + accepted, 2]
    assert inputs.sampling_rows.tokens_before(0).tolist() == [*range(10, 16), *sampled[:accepted]]
    # One token of output before the steps, so that the minimum of four is reached with two that are accepted.
    expires = batch.sampling.asked_of[inputs.slots] & metadata.EXPIRES
    assert (expires > 0).tolist() == [1 + accepted + 1 < 4, True]


def test_drafts_of_a_sequence_whose_slot_was_taken_are_forgotten() -> None:
    batch, inputs = with_drafts()
    again = NewSequence(1, 0, [10, 11, 12, 13, 14, 15], 5, 0, [[8, 9, 10]] * 2, SamplingParams())
    following = prepared(batch, StepPlan(2, [1], [again], [1], [6], [True], {}))
    assert [len(each) for each in batch.pending_tokens(following, inputs)] == [0, 0]
    batch.commit(inputs, np.array([16, 17, 18, 19, 22]))
    assert following.sampling_rows.num_tokens.tolist() == [6]
    assert prepared(batch, StepPlan(3, [], [], [1], [1], [True], {})).positions.tolist() == [6]
