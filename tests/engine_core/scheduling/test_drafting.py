"""Drafts: how many a step takes, how many steps they save, where they stop, and what is rolled back."""

from __future__ import annotations

import pytest

from engine_core.errors import ExecutorError
from engine_core.scheduling.drafting import num_worthwhile
from engine_core.step import StepResult

from .harness import Harness


def drafting(way="right", **config):
    """Results bring drafts of what will come, or of something else."""
    return Harness(drafts=way, **config)


def test_accepted_drafts_save_steps_and_wrong_ones_cost_rows():
    needed = {}
    for way in ("none", "right", "wrong", "half"):
        engine = drafting(way)
        engine.add("a", 10, max_tokens=30)
        engine.finish()
        stats = engine.scheduler.stats()
        needed[way] = stats.steps, stats.computed_tokens
        assert stats.generated_tokens == 30
    assert needed["none"] == (30, 39)
    assert needed["wrong"][0] == 30
    assert needed["wrong"][1] > 60
    assert needed["right"][0] < needed["half"][0] < 30
    assert needed["right"][1] == 39


def test_no_more_rows_are_sampled_than_there_may_be_sequences():
    engine = drafting(max_num_seqs=3)
    for name in "abc":
        engine.add(name, 6, max_tokens=12)
    engine.step(2)
    assert engine.plan.draft_token_ids == {}
    engine.cancel("b")
    engine.step()
    (drafts,) = engine.plan.draft_token_ids.values()
    assert len(drafts) == 1
    engine.finish()


def test_drafts_leave_a_free_block_to_each_sequence_that_runs():
    engine = drafting(blocks=16)
    engine.add("a", 57, max_tokens=7)
    engine.step(2)
    assert engine.used == 15
    assert [len(drafts) for drafts in engine.plan.draft_token_ids.values()] == [2], "as many as fit in its blocks"
    engine.finish()


@pytest.mark.parametrize(
    ("came_true", "num_drafts", "rows", "taken"),
    [
        (0, 8, 1, 3),  # as many as cost nothing
        (0, 2, 1, 2),
        (0, 8, 4, 0),
        (4, 8, 1, 4),  # some cost little
        (7, 8, 1, 7),
        (8, 8, 1, 7),  # the ninth row costs in full
        (3, 8, 16, 0),
        (4, 8, 16, 1),
        (31, 8, 16, 7),
        (32, 8, 500, 8),
        (99, -1, 1, 0),
        (None, 8, 500, 8),  # none was wrong
        (None, -1, 1, 0),
    ],
)
def test_a_step_takes_as_many_drafts_as_those_before_have_paid_for(came_true, num_drafts, rows, taken):
    assert num_worthwhile(came_true, num_drafts, rows) == taken


@pytest.mark.parametrize(("way", "rows_per_token"), [("wrong", 1.0), ("mixed", 1.1), ("half", 1.25)])
def test_many_sequences_waste_few_rows_on_drafts_that_do_not_come_true(way, rows_per_token):
    """Those of one step for each, which may be of five drafts, and then a part of what came true."""
    engine = drafting(way, max_num_seqs=64, blocks=400)
    for serial in range(16):
        engine.add(f"r{serial}", 2, max_tokens=30)
    engine.finish()
    stats = engine.scheduler.stats()
    assert stats.generated_tokens == 16 * 30
    assert stats.computed_tokens <= rows_per_token * 16 * 31 + 16 * 5


def test_many_sequences_save_steps_with_drafts_that_come_true():
    engine = drafting(max_num_seqs=200, blocks=400)
    for serial in range(16):
        engine.add(f"r{serial}", 2, max_tokens=60)
    engine.finish()
    stats = engine.scheduler.stats()
    assert stats.computed_tokens == 16 * 61
    assert stats.steps < 22


def test_trust_is_lost_and_earned_by_drafts_that_were_not_computed():
    engine = drafting(max_num_seqs=64, blocks=400)
    for serial in range(16):
        engine.add(f"r{serial}", 2, max_tokens=60)
    engine.step()
    sequence = engine.sequence("r0")
    sequence.drafts_come_true, sequence.drafts = 0, [sequence.drafts[0], *[0] * 7]
    engine.step()
    assert sequence.seq_id not in engine.plan.draft_token_ids
    assert sequence.drafts_come_true == 1
    engine.step_until(lambda: sequence.seq_id in engine.plan.draft_token_ids)
    assert len(engine.plan.draft_token_ids[sequence.seq_id]) == 1
    assert sequence.drafts_come_true in (5, 6)
    engine.step()
    sequence.drafts = [token + 1 for token in sequence.drafts]
    sequence.drafts_come_true = 3
    engine.step()
    assert (sequence.drafts_come_true, sequence.seq_id in engine.plan.draft_token_ids) == (0, False)
    engine.finish()


def test_no_more_drafts_are_taken_than_the_option_says():
    for most in (0, 2):
        engine = drafting(num_speculative_tokens=most)
        engine.add("a", 10, max_tokens=30)
        engine.finish()
        taken = {len(drafts) for plan in engine.executor.plans for drafts in plan.draft_token_ids.values()}
        assert taken == ({1, 2} if most else set())


def test_a_sequence_waits_for_a_token_only_if_drafts_follow_it():
    engine = drafting("right", max_concurrent_steps=2)
    engine.add("a", 8, max_tokens=30)
    engine.plan_ahead()
    assert engine.plan_ahead().num_tokens == [1], "no drafts are known yet"
    engine.take_result()
    sequence = engine.sequence("a")
    assert len(sequence.drafts) > 1
    assert engine.plan_ahead() is None, "it will be computed together with what follows"
    engine.take_result()
    drafts = list(sequence.drafts)
    assert engine.plan_ahead().draft_token_ids == {sequence.seq_id: drafts}
    assert engine.plan_ahead() is None, "where it continues is not known"
    engine.take_results()
    engine.finish()


@pytest.mark.parametrize(
    ("config", "prompt", "max_tokens"),
    [
        ({"max_num_seqs": 1}, 1, 30),
        ({"max_num_batched_tokens": 1}, 1, 30),
        ({"num_speculative_tokens": 0}, 1, 30),
        ({"max_model_len": 4}, 1, 30),
        ({}, 1, 3),
        ({"max_model_len": 16, "blocks": 4}, 10, 30),
    ],
)
def test_no_sequence_waits_where_no_drafts_can_be_computed(config, prompt, max_tokens):
    """There is room for no further row, only one further token to compute, or no block for more."""
    engine = drafting("right", max_concurrent_steps=2, **config)
    engine.add("a", prompt, max_tokens=max_tokens)
    engine.plan_ahead()
    engine.plan_ahead()
    engine.take_result()
    assert len(engine.sequence("a").drafts) > 1
    assert engine.plan_ahead().num_tokens == [1]
    engine.take_results()
    engine.finish()


def test_others_are_planned_while_a_sequence_waits():
    engine = drafting("right", max_concurrent_steps=2)
    engine.add("a", 8, max_tokens=30)
    engine.plan_ahead()
    engine.plan_ahead()
    engine.take_result()
    engine.add("b", 8, max_tokens=9)
    engine.plan_ahead()
    assert engine.planned == [("b", 0)]
    engine.take_results()
    engine.finish()


def test_drafts_that_turn_out_wrong_cost_no_overlap_once_they_are_distrusted():
    engine = drafting("wrong", max_concurrent_steps=2)
    for serial in range(6):
        engine.add(f"r{serial}", 4, max_tokens=20)
    engine.step_until(lambda: all(engine.sequence(f"r{serial}").drafts_come_true == 0 for serial in range(6)))
    engine.plan_ahead()
    for _ in range(10):
        assert engine.plan_ahead().num_tokens == [1] * 6
        engine.take_result()
    engine.take_results()
    engine.finish()


def test_no_drafts_are_computed_behind_a_token_that_an_earlier_step_samples():
    """One that did not wait, because the step would be large, is alone in it: the others have all their tokens."""
    engine = drafting("right", max_concurrent_steps=2)
    for serial in range(5):
        engine.add(f"r{serial}", 4, max_tokens=20 if serial == 0 else 3)
    engine.plan_ahead()
    engine.plan_ahead()
    for rows in (5, 1):
        engine.take_result()
        for seq in engine.scheduler._lifecycle.running:
            seq.drafts_come_true = 0
        assert engine.plan_ahead().num_tokens == [1] * rows
    assert len(engine.sequence("r0").drafts) > 1
    engine.take_results()
    engine.finish()


def test_drafts_are_forgotten_when_another_token_comes_or_the_sequence_is_preempted():
    engine = Harness()
    engine.add("a", 4, max_tokens=20)
    plan, scheduler, sequence = engine.scheduler.schedule(), engine.scheduler, engine.sequence("a")

    def bring(*token_ids, drafts=()):
        nonlocal plan
        following = {sequence.seq_id: list(drafts)} if drafts else {}
        scheduler.update(plan, StepResult(plan.step_id, [list(token_ids)], draft_token_ids=following))
        known, plan = list(sequence.drafts), scheduler.schedule()
        return known, list(plan.draft_token_ids.get(sequence.seq_id, ()))

    assert bring(5, drafts=[6, 7, 8, 9, 10, 11]) == ([6, 7, 8, 9, 10, 11], [6, 7, 8, 9, 10, 11])
    assert bring(6, 7, 8, 9, 10, 11, 3) == ([], [])
    assert bring(3, drafts=[3, 2]) == ([3, 2], [3, 2])
    assert sequence.drafts_come_true is None
    assert bring(3, 7) == ([], [])
    assert sequence.drafts_come_true == 0
    assert bring(7, drafts=[3, 2]) == ([3, 2], [3, 2])
    scheduler._lifecycle.preempt(sequence)
    assert (sequence.drafts, sequence.is_drafted, sequence.num_pending) == ([], False, 0)


def test_a_preempted_sequence_forgets_its_drafts():
    engine = drafting(blocks=16)
    engine.add("a", 4, max_tokens=50)
    engine.add("b", 4, max_tokens=50)
    engine.step_until_preemption()
    engine.finish()


def test_more_tokens_than_were_asked_for_are_an_executor_error():
    engine = drafting()
    engine.add("a", 4, max_tokens=20)
    engine.step()
    plan = engine.scheduler.schedule()
    (drafts,) = plan.draft_token_ids.values()
    with pytest.raises(ExecutorError):
        engine.scheduler.update(plan, StepResult(plan.step_id, [[1] * (len(drafts) + 2)]))
