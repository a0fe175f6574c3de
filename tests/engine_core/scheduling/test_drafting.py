"""Drafts: how many steps they save, where they stop, and what is rolled back."""

from __future__ import annotations

import pytest

from engine_core.errors import ExecutorError
from engine_core.request import Finish, FinishReason
from engine_core.step import StepResult

from .audit import check_idle
from .checked_executor import EOS
from .harness import Harness


def drafting(way="right", **config):
    """With a drafter that proposes what will come, or something else."""
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


def test_a_step_may_bring_a_token_that_ends_the_choice_and_nothing_behind_it():
    engine = drafting()
    engine.add("a", 10, max_tokens=50, ignore_eos=False)
    length = len(engine.streams["a"].expected[0][0])
    engine.step_until(lambda: engine.streams["a"].done)
    assert engine.streams["a"].finish[0] == Finish(FinishReason.STOP, EOS)
    assert engine.scheduler.stats().generated_tokens == length
    check_idle(engine.scheduler)


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


def test_only_accepted_tokens_are_published():
    """Blocks that drafts filled are found by others with the tokens that were accepted, or not at all."""
    for way in ("right", "wrong", "half"):
        engine = drafting(way, prefix_caching=True)
        engine.add("a", range(2, 8), max_tokens=20)
        engine.finish()
        output = engine.streams["a"].tokens[0]
        assert engine.cached("b", [*range(2, 8), *output], max_tokens=4) == 24
        engine.add("c", [*range(2, 8), *output[:-1], (output[-1] + 1) % 40], max_tokens=4)
        engine.finish()


def test_a_sequence_waits_for_its_tokens_while_others_are_planned():
    engine = drafting(max_num_batched_tokens=8, max_concurrent_steps=2)
    engine.add("a", 8, max_tokens=9)
    engine.add("b", 8, max_tokens=9)
    first, second = engine.plan_ahead(), engine.plan_ahead()
    assert set(first.seq_ids).isdisjoint(second.seq_ids)
    assert engine.plan_ahead() is None
    engine.take_results()
    engine.finish()


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
