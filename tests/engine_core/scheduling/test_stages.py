"""Pipeline parallelism: how a step leaves work to the other steps in flight, and who waits for whom."""

from __future__ import annotations

import pytest

from .harness import Harness


def decoding(count, **config):
    """So many sequences that all wait for their second token."""
    engine = Harness(**{"max_num_batched_tokens": 64} | config)
    for serial in range(count):
        engine.add(f"r{serial}", 2, max_tokens=20)
    engine.step()
    return engine


def batches(engine, count):
    """Plan so many steps ahead; how many sequences each has."""
    return [len(plan.seq_ids) if (plan := engine.plan_ahead()) else 0 for _ in range(count)]


@pytest.mark.parametrize(
    ("stages", "count", "parts"),
    [(2, 8, [4, 4]), (2, 7, [4, 3]), (3, 8, [3, 3, 2]), (3, 2, [1, 1, 0]), (2, 1, [1, 0]), (1, 5, [5])],
)
def test_decoding_sequences_are_spread_over_the_steps_in_flight(stages, count, parts):
    engine = decoding(count, stages=stages)
    assert batches(engine, stages) == parts
    for turn in range(6):
        engine.take_result()
        assert batches(engine, 1) == [parts[turn % min(stages, count)]]
    engine.take_results()
    engine.finish()


def test_who_ends_or_comes_is_shared_out_again():
    engine = decoding(8, stages=2)
    assert batches(engine, 2) == [4, 4]
    first = {name for name, _ in engine.planned}
    for name in [f"r{serial}" for serial in range(8)]:
        if name not in first:
            engine.cancel(name)
    engine.take_results()
    assert batches(engine, 2) == [2, 2]
    engine.take_results()
    for serial in range(4):
        engine.add(f"late {serial}", 2, max_tokens=20)
    assert batches(engine, 1) == [2 + 4]
    engine.take_results()
    assert batches(engine, 2) == [4, 4]
    engine.take_results()
    engine.finish()


def test_chunks_of_a_prompt_follow_each_other_at_once():
    engine = Harness(stages=3, max_num_batched_tokens=8)
    engine.add("a", 24)
    engine.plan_ahead()
    engine.plan_ahead()
    engine.plan_ahead()
    assert [plan.num_tokens for plan, _ in engine.waiting] == [[8], [8], [8]]
    assert [plan.samples for plan, _ in engine.waiting] == [[False], [False], [True]]
    engine.take_results()
    engine.finish()


def test_a_prompt_leaves_no_room_for_those_whose_turn_it_is_not():
    engine = decoding(6, stages=2, max_num_batched_tokens=16)
    engine.add("long", 40)
    assert batches(engine, 2) == [4, 4]
    assert engine.waiting[1][0].num_tokens == [1, 1, 1, 13]
    engine.take_results()
    engine.finish()


def test_nobody_starves_where_one_step_at_a_time_is_planned():
    engine = decoding(6, stages=3)
    planned = [name for _ in range(6) for name, _, _ in engine.next_batch()]
    assert all(planned.count(f"r{serial}") == 2 for serial in range(6))
    engine.finish()


def test_where_all_whose_turn_it_is_are_preempted_it_is_the_turn_of_others():
    """Of two that fill the cache, the younger one's turn comes first: it is preempted, and the other one goes on."""
    engine = Harness(stages=2, blocks=16)
    engine.add("a", 28, max_tokens=30)
    engine.add("b", 28, max_tokens=30)
    while engine.scheduler.has_work():
        assert engine.plan_ahead() or engine.scheduler._lifecycle.ended, "the scheduler stands still"
        engine.take_result()
    assert engine.scheduler.stats().preemptions > 0
    engine.finish()


@pytest.mark.parametrize("stages", [2, 3])
def test_choices_prefixes_drafts_and_cancels_go_through_stages(stages):
    engine = Harness(stages=stages, blocks=24, prefix_caching=True, drafts="half", max_num_batched_tokens=16)
    for serial in range(6):
        engine.add(f"r{serial}", range(2, 12 + serial), n=1 + serial % 3, max_tokens=12, seed=serial)
    for turn in range(400):
        engine.plan_ahead()
        if turn == 6:
            engine.cancel("r3")
        if len(engine.waiting) == stages or engine.plan is None:
            engine.take_result()
        if not engine.scheduler.has_work() and not engine.waiting:
            break
    engine.finish()
    assert engine.scheduler.stats().prefix_hit_tokens > 0
