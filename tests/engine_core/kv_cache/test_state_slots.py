"""States of sequences: where snapshots are left and found, what they save, and what happens when slots are few."""

from __future__ import annotations

import random
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.config import CacheConfig, SchedulerConfig
from engine_core.errors import OutOfMemoryError
from engine_core.kv_cache import state_slots
from engine_core.kv_cache.prefix_hashes import SeenBlocks
from engine_core.kv_cache.state_slots import snapshot_positions
from engine_core.kv_cache_interface import NO_STATE, KVCacheConfig, KVCacheGroup
from engine_core.request import Request, SamplingParams
from engine_core.scheduling import Scheduler, drafting
from engine_core.step import StepResult

from ..scheduling.checked_executor import model_spec
from ..scheduling.harness import Harness

PROMPT = tuple(range(2, 24))  # 22 tokens: five full blocks of 4 and a half
SLOTS = 4 * 64 + 2
"""As many as are useful to 64 sequences."""


def keeping(states=12, **config):
    return Harness(states=states, **{"prefix_caching": True} | config)


class Traffic:
    """An engine with blocks of 16 tokens that draws tokens at random, and tells how many it has computed."""

    def __init__(self, states, *, max_num_seqs=64, attends=True, in_flight=1):
        """Without slots for ``states`` all its layers attend; else some or, unless it ``attends``, none."""
        config = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=max_num_seqs, max_num_queued_reqs=1000)
        groups = (KVCacheGroup((0,)),) if attends else ()
        size = KVCacheConfig(20_000 if attends else 0, 16, 1, groups, num_states=states)
        model = model_spec(vocab_size=1000, max_model_len=8192)
        self.random = random.Random(0)
        self.scheduler = Scheduler(config, CacheConfig(block_size=16, enable_prefix_caching=True), size, model)
        self._in_flight = in_flight
        self._output: list[list[int]] = []

    def tokens(self, count):
        return [self.random.randrange(2, 1000) for _ in range(count)]

    def generate(self, prompts, max_tokens):
        """The outputs for prompts that come at the same time."""
        first = len(self._output)
        for number, prompt in enumerate(prompts, start=first):
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            self.scheduler.add(Request(str(number), tuple(prompt), params))
            self._output.append([])
        plans = []
        while self.scheduler.has_work():
            plan = self.scheduler.schedule()
            if plan is not None:
                plans.append(plan)
            if plan is None or len(plans) == self._in_flight:
                plan = plans.pop(0)
                tokens = [self.tokens(samples) for samples in plan.samples]
                for output in self.scheduler.update(plan, StepResult(plan.step_id, tokens)):
                    self._output[int(output.request_id)] += output.token_ids
        return self._output[first:]

    @property
    def computed(self):
        return self.scheduler.stats().computed_tokens


def chat(states, *, chats, thoughts=0, **config):
    """Tokens computed in 20 turns of so many chats, whose prompts leave out the first ``thoughts`` of an answer."""
    engine = Traffic(states, **config)
    texts = [engine.tokens(300) for _ in range(chats)]
    call = engine.tokens(3)
    for _ in range(20):
        for text in texts:
            text += engine.tokens(engine.random.randrange(30, 90))
        answers = engine.generate([text + call for text in texts], 90)
        for text, answer in zip(texts, answers, strict=True):
            text += answer[thoughts:] if thoughts else call + answer
    return engine.computed


@pytest.mark.parametrize(("chats", "thoughts", "attends"), [(1, 0, True), (8, 0, True), (8, 70, True), (8, 70, False)])
def test_a_chat_computes_as_much_as_with_attention_alone(chats, thoughts, attends):
    """With four slots for each sequence that may run, and two more."""
    mixed = chat(4 * chats + 2, chats=chats, thoughts=thoughts, max_num_seqs=chats, attends=attends)
    assert mixed <= 1.1 * chat(0, chats=chats, thoughts=thoughts, max_num_seqs=chats)


@pytest.mark.parametrize(
    ("suffix", "in_flight", "attends"), [(10, 2, True), (50, 1, True), (50, 2, True), (50, 1, False), (300, 1, True)]
)
def test_prompts_that_begin_alike_compute_little_more_than_once(suffix, in_flight, attends):
    """64 at once: all of them begin with the same 2,000 tokens."""

    def computed(states, attends):
        engine = Traffic(states, attends=attends, in_flight=in_flight)
        beginning = engine.tokens(2000)
        engine.generate([beginning + engine.tokens(suffix) for _ in range(64)], 8)
        return engine.computed

    assert computed(SLOTS, attends) <= 1.1 * computed(0, attends=True)


@given(
    st.integers(1, 40_000),
    st.lists(st.integers(0, 40_000), max_size=8),
    st.integers(0, 2_000),
    st.sampled_from([1, 4, 16, 24, 64, 256]),
)
def test_snapshots_of_a_prompt_do_not_depend_on_its_chunks(length, cuts, branch, block_size):
    branch_at = branch * block_size
    ends = [0, *sorted(cut for cut in cuts if cut < length), length]
    chunks = [snapshot_positions(*pair, length, branch_at, block_size) for pair in pairwise(ends)]
    together = snapshot_positions(0, length, length, branch_at, block_size)
    assert [position for chunk in chunks for position in chunk] == together
    assert all(position % block_size == 0 and 0 < position <= length for position in together)
    last = (length - 1) // block_size * block_size
    assert last in together or not last
    assert branch_at in together or not 0 < branch_at <= last
    assert len(together) <= 4 + 4 + 4 * max(0, (length // 2048).bit_length())


@pytest.mark.parametrize(
    ("start", "end", "prompt", "branch_at", "expected"),
    [
        (0, 100, 100, 0, [96, 80]),
        (0, 105, 105, 0, [96]),  # nine tokens follow: the next turn finds it
        (0, 96, 96, 0, [96, 80]),
        (0, 40, 100, 0, []),
        (0, 16, 16, 0, [16]),
        (0, 100, 100, 48, [96, 80, 48]),
        (16, 3000, 3100, 0, [2560, 2048, 1536, 1024, 512]),
        (8192, 16384, 16500, 0, [16384, 14336, 12288, 10240]),
        (99, 100, 50, 0, []),
        (111, 112, 50, 0, [112]),
        (40, 150, 50, 0, [144, 48]),  # of an output that is computed again, the last one
        (500, 1030, 50, 0, [1024, 512]),
    ],
)
def test_where_snapshots_are_left(start, end, prompt, branch_at, expected):
    assert snapshot_positions(start, end, prompt, branch_at, 16) == expected[::-1]


def test_plans_of_models_without_states_name_none():
    engine = Harness()
    engine.add("a")
    engine.finish()
    assert all(plan.states is None for plan in engine.executor.plans)


def test_a_sequence_works_in_one_slot_and_starts_from_nothing():
    engine = keeping(prefix_caching=False, max_num_batched_tokens=8)
    engine.add("a", PROMPT, max_tokens=5)
    engine.finish()
    plans = [plan.states for plan in engine.executor.plans]
    (slot,) = {target for states in plans for target in states.targets}
    assert [states.sources for states in plans] == [[NO_STATE]] + [[slot]] * (len(plans) - 1)
    assert not any(states.saves for states in plans)


def test_a_prompt_is_found_up_to_its_last_snapshot():
    engine = keeping()
    assert engine.cached("a", PROMPT) == 0
    assert engine.cached("b", PROMPT) == 20
    assert engine.cached("c", (*PROMPT[:18], 30, 31)) == 16  # as little follows the last block end in the prompt
    assert engine.cached("d", (*PROMPT[:9], *range(24, 32))) == 0


def test_where_prompts_branch_a_snapshot_is_left():
    engine = keeping()
    engine.cached("a", PROMPT)
    assert engine.cached("b", (*PROMPT[:9], *range(24, 34))) == 0
    assert engine.cached("c", (*PROMPT[:9], *range(30, 37))) == 8


def test_who_lacks_a_snapshot_that_is_being_left_waits_for_it():
    engine = keeping(max_num_batched_tokens=16)
    engine.cached("a", PROMPT)
    engine.add("b", (*PROMPT[:17], *range(24, 30)), max_tokens=9)
    engine.add("c", (*PROMPT[:17], *range(30, 37)))
    engine.add("d", range(20, 24))
    engine.scheduler.reset_prefix_cache()
    engine.finish()
    engine.add("e", (*PROMPT[:13], *range(24, 30)), max_tokens=9)
    engine.add("f", (*PROMPT[:13], *range(30, 37)))
    assert [name for name, _, _ in engine.next_batch()] == ["e"]
    assert [name for name, _, _ in engine.next_batch()] == ["e", "f"]
    assert (engine.streams["e"].cached_tokens, engine.streams["f"].cached_tokens) == (0, 12)
    engine.finish()


def test_nobody_waits_for_a_snapshot_whose_sequence_has_ended():
    engine = keeping(max_num_batched_tokens=8)
    engine.cached("a", PROMPT)
    engine.add("b", (*PROMPT[:17], *range(24, 30)))
    engine.step()
    engine.add("c", (*PROMPT[:17], *range(30, 37)))
    engine.cancel("b")
    assert [name for name, _, _ in engine.next_batch()] == ["c"]
    engine.finish()


def test_output_is_found_again_up_to_its_newest_block():
    engine = keeping()
    engine.add("a", PROMPT, max_tokens=12)
    output = engine.finish()["a"][0]
    assert engine.cached("b", (*PROMPT, *output, 5)) == 32
    assert engine.cached("c", (*PROMPT, *output[:7], 5)) == 20, "older ones were replaced"


def test_the_snapshot_unused_for_the_longest_time_is_overwritten():
    engine = keeping(states=6, max_num_seqs=1)
    prompts = [[2 + (number * 5 + at) % 37 for at in range(22)] for number in range(4)]
    for number in (0, 1, 0, 2, 3):
        engine.cached(f"{number} {engine.now}", prompts[number], max_tokens=1)
        engine.now += 1
    assert engine.cached("0", prompts[0], max_tokens=1) == 20
    assert engine.cached("1", prompts[1], max_tokens=1) == 0


def test_a_preempted_sequence_goes_on_from_its_newest_snapshot():
    engine = keeping(blocks=16)
    engine.add("first", 30, max_tokens=30)
    engine.step()
    engine.add("second", 22, max_tokens=30)
    engine.step_until_preemption()
    computed = 22 + len(engine.sequence("second").output) - 1
    engine.cancel("first")
    engine.step_until(lambda: engine.plan.new)
    (new,) = engine.plan.new
    assert new.num_computed_tokens == computed // 4 * 4 > 22
    engine.finish()


@mock.patch.object(state_slots, "_MILESTONE", 16)
def test_who_has_lost_its_last_blocks_goes_on_from_a_milestone():
    engine = keeping(blocks=24)
    engine.add("a", 9, max_tokens=40)
    engine.step_until(lambda: engine.computed == [39])
    seq = engine.sequence("a")
    engine.scheduler._lifecycle.preempt(seq)
    engine.scheduler._kv.pool.allocate(18)  # of nine full blocks that it has filled, three are left
    prefix = engine.scheduler._kv.find_prefix(seq)
    assert prefix.num_blocks * 4 == 16


def test_without_prefix_caching_a_preempted_sequence_computes_everything_again():
    engine = keeping(blocks=16, prefix_caching=False)
    engine.add("first", 30, max_tokens=30)
    engine.add("second", 23, max_tokens=30)
    engine.step_until_preemption()
    engine.step_until(lambda: engine.plan.new)
    assert engine.plan.new[0].num_computed_tokens == 0
    engine.finish()


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_choices_start_from_the_state_behind_their_prompt(prefix_caching, prompt_logprobs):
    engine = keeping(prefix_caching=prefix_caching, max_num_batched_tokens=10)
    engine.add("a", PROMPT, n=4, max_tokens=8, prompt_logprobs=prompt_logprobs)
    engine.finish()
    introduced = [new for plan in engine.executor.plans for new in plan.new]
    assert [new.num_computed_tokens for new in introduced] == [0, 20, 20, 20]


def test_choices_compute_a_prompt_whose_state_has_no_slot():
    engine = keeping(states=3, prefix_caching=False)
    engine.add("a", PROMPT, n=3, max_tokens=3)
    engine.finish()
    introduced = [new for plan in engine.executor.plans for new in plan.new]
    assert [new.num_computed_tokens for new in introduced] == [0, 0, 0]


def test_drafts_have_a_slot_per_row_and_are_cut_where_there_is_none():
    engine = keeping(states=7, drafts="right", prefix_caching=False)
    engine.add("a", 5, max_tokens=30)
    engine.finish()
    drafted = [plan for plan in engine.executor.plans if plan.draft_token_ids]
    counts = {len(drafts) for plan in drafted for drafts in plan.draft_token_ids.values()}
    for plan in drafted:
        ((seq_id, drafts),) = plan.draft_token_ids.items()
        assert [rows for rows, _ in plan.states.saves[seq_id]] == list(range(1, len(drafts) + 1))
    # Of seven slots it works in one, two stay free, and it may start from the state after a draft.
    assert max(counts) == 4
    engine = keeping(states=3, drafts="right")
    engine.add("a", 5, max_tokens=30)
    engine.finish()
    assert not any(plan.draft_token_ids for plan in engine.executor.plans)


@pytest.mark.parametrize("way", ["half", "mixed"])
@pytest.mark.parametrize("trusting", [False, True])
def test_after_rejected_drafts_it_goes_on_from_the_last_accepted_one(way, trusting):
    with mock.patch.object(drafting, "FREE_ROWS", 1000 if trusting else drafting.FREE_ROWS):
        engine = keeping(states=30, drafts=way)
        for name in "abc":
            engine.add(name, 5, max_tokens=40)
        engine.finish()
        assert engine.executor.planned > 30


def test_reset_hides_snapshots():
    engine = keeping(windows=())
    engine.cached("a", PROMPT)
    assert engine.scheduler.reset_prefix_cache() == 3
    assert engine.cached("b", PROMPT) == 0
    assert engine.cached("c", PROMPT) == 20


@pytest.mark.parametrize("windows", [(), (None,)])
def test_nothing_that_rests_on_forgotten_states_is_found(windows):
    engine = keeping(windows=windows)
    engine.add("running", PROMPT, max_tokens=20, n=2)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    for choice, output in engine.finish()["running"].items():
        assert engine.cached(f"again {choice}", (*PROMPT, *output)) == 0


def test_a_model_without_attention_needs_no_blocks():
    engine = keeping(windows=(), blocks=0)
    assert engine.cached("a", PROMPT, max_tokens=12) == 0
    assert engine.cached("b", PROMPT) == 20
    engine.add("c", PROMPT, n=3)
    engine.step()
    stats = engine.scheduler.stats()
    assert (stats.kv_blocks, stats.kv_blocks_used) == (0, 0)
    assert stats.kv_usage == stats.state_slots_used / 12 > 0
    engine.finish()


def test_as_many_run_as_have_a_slot():
    engine = keeping(states=8, prefix_caching=False)
    for name in "abcdef":
        engine.add(name, 5)
    # Two of eight slots stay free, and two more are for snapshots and drafts.
    assert [name for name, _, _ in engine.next_batch()] == ["a", "b", "c", "d"]
    engine.finish()
    with pytest.raises(OutOfMemoryError, match="has 2 slots for states, fewer than the 3 that a sequence takes"):
        keeping(states=2)


def test_the_blocks_seen_last_are_known():
    seen = SeenBlocks(3)
    seen.add([b"a", b"b", b"c"])
    seen.add([b"a", b"d"])
    assert seen.leading([b"a", b"b"]) == 1
    assert seen.leading([b"c", b"d", b"a"]) == 3
    seen.clear()
    assert seen.leading([b"a"]) == 0
