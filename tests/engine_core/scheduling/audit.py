"""Checks that look behind the scheduler: every block accounted for, every stream of outputs well-formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache_interface import NO_BLOCK, NO_STATE
from engine_core.request import FinishReason, Request
from engine_core.scheduling import Scheduler
from engine_core.step import SequenceOutput, StepPlan

from .checked_executor import expected_outputs, prompt_entry

MOST_PICTURE_TOKENS = 6
"""Of the pictures in these tests."""


def check_pool(pool: BlockPool) -> None:
    """The free list holds exactly the blocks without holders, and contents point at their blocks."""
    free = []
    block = pool._next[pool.num_blocks]
    while block != pool.num_blocks:
        assert pool._prev[pool._next[block]] == block
        free.append(block)
        block = pool._next[block]
    assert len(free) == len(set(free)) == pool.num_free
    assert set(free) == {block for block in range(pool.num_blocks) if pool.ref_count(block) == 0}
    published = {block: content for block, content in enumerate(pool._hash) if content is not None}
    known = {block: content for content, block in pool._by_hash.items()}
    copies = {block: content for content, blocks in pool._copies.items() for block in blocks}
    assert published == known | copies
    assert len(published) == len(known) + len(copies)
    assert all(pool._copies.values())
    assert all(pool.ref_count(block) for content in pool._copies for block in (pool._by_hash[content], *copies))


def held(block_tables):
    return [block for table in block_tables for block in table if block != NO_BLOCK]


def check_holders(scheduler: Scheduler) -> None:
    """Each block has as many holders as there are tables it is in: no leak, no block freed too early."""
    sequences, pool = scheduler._lifecycle, scheduler._kv.pool
    check_pool(pool)
    holders: Counter[int] = Counter()
    for seq in sequences.running:
        holders.update(held(seq.block_tables))
        assert seq.group.members[seq.choice] is seq
        assert [table.count(NO_BLOCK) for table in seq.block_tables] == seq.first_blocks
        assert scheduler._kv.num_held(seq) == len(held(seq.block_tables))
        for shared, table in zip(seq.group.shared_blocks or (), seq.block_tables, strict=False):
            pairs = zip(shared, table, strict=False)
            assert all(NO_BLOCK in pair or pair[0] == pair[1] for pair in pairs), "held twice for one request"
    for group in sequences.groups.values():
        holders.update(held(group.shared_blocks or []))
        assert group.num_running == sum(seq.group is group for seq in sequences.running)
        assert group.leader is None or group.num_running == 1
        assert group.shared_blocks is None or group.num_waiting
    for step in sequences.in_flight.values():
        for block_tables in step.deferred:
            holders.update(held(block_tables))
    check_states(scheduler)
    check_pictures(scheduler)
    assert {block: pool.ref_count(block) for block in range(pool.num_blocks) if pool.ref_count(block)} == holders
    assert sequences.running == sorted(sequences.running, key=lambda seq: seq.rank)
    assert len(sequences.running) <= scheduler._places <= scheduler._config.max_num_seqs


def check_pictures(scheduler: Scheduler) -> None:
    """Embeddings have as many holders as sequences and steps hold them, and fit."""
    encoder, sequences = scheduler._encoder, scheduler._lifecycle
    if encoder is None:
        return
    partial = {seq.seq_id: seq.partial_picture for group in sequences.groups.values() for seq in group.members.values()}
    running = {seq.seq_id for seq in sequences.running}
    assert all(key is None or seq_id in running for seq_id, key in partial.items())
    holders = Counter(key for key in partial.values() if key is not None)
    for step in sequences.in_flight.values():
        holders.update(step.pictures)
    assert encoder._holders == holders
    assert encoder._holders.keys().isdisjoint(encoder._idle)
    assert encoder._holders.keys() | encoder._idle.keys() == encoder._tokens.keys()
    begun = encoder._begun
    assert begun is None or begun.key not in encoder._tokens
    kept = sum(encoder._tokens.values()) + (0 if begun is None else begun.tokens)
    assert kept == encoder._num_kept <= encoder.capacity
    assert sum(encoder._tokens[key] for key in holders) == encoder.num_held


def check_states(scheduler: Scheduler) -> None:
    """Each slot has as many holders as sequences, groups and steps hold it."""
    sequences, states = scheduler._lifecycle, scheduler._kv.states
    if states is None:
        assert all(seq.states is None for group in sequences.groups.values() for seq in group.members.values())
        steps = sequences.in_flight.values()
        assert all(not (step.states or step.state_uses or step.deferred_states) for step in steps)
        return
    check_pool(states.pool)
    holders: Counter[int] = Counter()
    for group in sequences.groups.values():
        if group.shared_state != NO_STATE:
            holders[group.shared_state] += 1
            assert group.leader is not None or group.shared_blocks is not None
        for seq in group.members.values():
            assert (seq.states is not None) == (seq in sequences.running)
            holders.update(() if seq.states is None else seq.states.slots)
    for step in sequences.in_flight.values():
        holders.update(step.deferred_states)
        for use in step.state_uses.values():
            holders.update((*use.read, *use.left))
    assert states._running == {seq.seq_id for seq in sequences.running}
    assert set(states._awaited.values()) <= states._running
    trails = {slot: owner for owner, slots in states._trails.items() for slot in slots}
    assert trails == {slot: owner for slot, owner in enumerate(states._left_by) if owner is not None}
    assert not trails.keys() & (states._worn.keys() | states._milestones.keys())
    assert not states._worn.keys() & states._milestones.keys()
    pool = states.pool
    assert {slot: pool.ref_count(slot) for slot in range(pool.num_blocks) if pool.ref_count(slot)} == holders


def check_idle(scheduler: Scheduler) -> None:
    """Nothing is left of any request."""
    stats = scheduler.stats()
    assert not scheduler.has_work()
    assert stats.kv_blocks_used == stats.running_seqs == stats.waiting_seqs == 0
    assert stats.waiting_reqs == stats.queued_tokens == 0
    assert not scheduler._queue
    assert not scheduler._lifecycle._holding
    check_holders(scheduler)
    if scheduler._speculation is not None:
        assert not scheduler._speculation._drafted
        assert scheduler._speculation._ngram is None or not scheduler._speculation._ngram._texts
    assert scheduler._encoder is None or not scheduler._encoder.num_held
    if scheduler._kv.states is not None:
        assert scheduler._kv.states.pool.num_free == scheduler._kv.states.pool.num_blocks


def check_room_for_others(scheduler: Scheduler, plan: StepPlan, shared: set[str]) -> None:
    """Whoever comes to an engine that tenants share (``shared`` each with another) finds a place and tokens."""
    config, planned = scheduler._config, scheduler._lifecycle.in_flight[plan.step_id].sequences
    places = scheduler._places
    kept = round(places / 16 + 1e-9)
    by_id = {seq.seq_id: seq.group.tenant for seq in planned}
    started = [by_id[new.seq_id] for new in plan.new]
    held = Counter(seq.group.tenant for seq in scheduler._lifecycle.running)
    held.subtract(started)
    for tenant in started:
        free = places - held.total()
        part = (places - kept) // max(2, sum(count > 0 for count in held.values()))
        assert free > kept or held[tenant] < max(1, part) or tenant not in shared
        held[tenant] += 1
    if config.enable_chunked_prefill:
        new = {new.seq_id for new in plan.new}
        prompts: Counter[str] = Counter()
        for seq, planned_tokens, samples in zip(planned, plan.num_tokens, plan.samples, strict=True):
            count = planned_tokens - len(plan.draft_token_ids.get(seq.seq_id, ()))
            prompts[seq.group.tenant] += count if count > 1 or not samples or seq.seq_id in new else 0
        quarter = max(1, config.max_num_batched_tokens // 4)
        if scheduler._encoder is not None and scheduler._encoder._attends_both_ways:
            quarter = max(quarter, MOST_PICTURE_TOKENS)  # the first picture of a step is computed whole
        assert all(prompts[tenant] <= quarter for tenant in shared)


def decoding_seq_ids(scheduler: Scheduler) -> set[int]:
    """Running sequences that lack one token, which some step in flight may be computing."""
    running = [seq for seq in scheduler._lifecycle.running if seq.num_computed < seq.group.max_computed]
    return {seq.seq_id for seq in running if seq.num_tokens - seq.num_computed == 1}


def texts(streams: dict[str, Stream]) -> Iterator[list[int]]:
    """Prompt and output of every choice, as they will be."""
    for stream in streams.values():
        for expected, _ in stream.expected.values():
            yield [*stream.request.prompt_token_ids, *expected]


class Stream:
    """The outputs of one request, checked one by one against what they must come to."""

    def __init__(self, request: Request, model) -> None:
        self.request = request
        choices = sorted(request.resume) or range(request.params.n)
        self.expected = expected_outputs(request, model)
        self.tokens = {choice: list(request.resume.get(choice, ())) for choice in choices}
        self.finish = dict.fromkeys(choices)
        self.cut: dict[int, FinishReason] = {}
        """Choices that were cancelled or may have run out of time, and so may end with that cause, early."""
        self.cached_tokens = None
        self.prefilled = 0
        self.prompt_logprobs = None if request.params.prompt_logprobs is None else []

    @property
    def done(self) -> bool:
        return all(self.finish.values())

    def take(self, output: SequenceOutput) -> None:
        choice = output.choice
        tokens, (expected, finish) = self.tokens[choice], self.expected[choice]
        assert self.finish[choice] is None, "something follows the finish"
        assert output.first_position == len(tokens)
        tokens += output.token_ids
        assert tokens == expected[: len(tokens)]
        if self.request.params.logprobs is None:
            assert output.logprobs is None
        else:
            assert [entry.rank - 1 for entry in output.logprobs or ()] == output.token_ids
            assert output.logprobs is None or output.token_ids
        self._take_prompt_news(output)
        if output.finish is None:
            is_found_again = self.request.params.beam_search is not None
            assert len(tokens) < len(expected) or finish.finish_reason is FinishReason.ERROR or is_found_again
        elif choice in self.cut and output.finish.finish_reason is self.cut[choice]:
            assert output.token_ids == []
            self.finish[choice] = output.finish
        else:
            assert output.finish == finish
            assert tokens == expected
            self.finish[choice] = output.finish

    def _take_prompt_news(self, output: SequenceOutput) -> None:
        prompt = self.request.prompt_token_ids
        if output.cached_tokens is not None:
            assert self.cached_tokens is None
            assert output.queue_seconds is not None
            assert output.queue_seconds >= 0
            assert 0 <= output.cached_tokens <= len(prompt)
            self.cached_tokens = output.cached_tokens
        if output.prefilled_tokens is not None:
            assert self.prefilled < output.prefilled_tokens <= len(prompt)
            self.prefilled = output.prefilled_tokens
        if output.prompt_logprobs is not None:
            assert output.prompt_logprobs, "no news is none"
            start = 1 + len(self.prompt_logprobs)
            self.prompt_logprobs += output.prompt_logprobs
            assert list(output.prompt_logprobs) == [
                prompt_entry(prompt, at) for at in range(start, 1 + len(self.prompt_logprobs))
            ]
        if output.token_ids:
            assert self.cached_tokens is not None
            assert self.prompt_logprobs is None or len(self.prompt_logprobs) == len(prompt) - 1
