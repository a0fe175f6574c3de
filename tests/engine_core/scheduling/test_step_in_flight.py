"""What happens to sequences between the planning of a step and the arrival of its results."""

from __future__ import annotations

import pytest

from engine_core.errors import ExecutorError
from engine_core.request import Finish, FinishReason
from engine_core.step import StepResult

from .audit import check_idle
from .checked_executor import EOS
from .harness import Harness


def overlapped(**config):
    """Steps may be planned far ahead of their results."""
    return Harness(max_concurrent_steps=64, **config)


def test_blocks_come_back_with_the_last_step_that_uses_them():
    engine = overlapped(max_num_batched_tokens=8)
    engine.add("a", 30)
    for _ in range(3):
        engine.plan_ahead()
    engine.cancel("a")
    for left in (8, 8, 0):
        engine.take_result()
        assert engine.used == left
    check_idle(engine.scheduler)


def test_a_sequence_goes_on_while_the_results_of_its_chunks_and_tokens_are_awaited():
    engine = overlapped(max_num_batched_tokens=8)
    engine.add("a", 20, max_tokens=3)
    assert [engine.plan_ahead().num_tokens for _ in range(5)] == [[8], [8], [4], [1], [1]]
    engine.take_results()
    engine.finish()


def test_nothing_is_planned_beyond_the_last_token_there_may_be():
    engine = overlapped()
    engine.add("a", 10, max_tokens=2)
    engine.add("b", 62, max_tokens=9)  # of 64 tokens that the model takes
    assert [engine.plan_ahead().num_tokens for _ in range(3)] == [[10, 54], [1, 8], [1]]
    assert engine.plan_ahead() is None
    engine.take_results()
    check_idle(engine.scheduler)


def test_a_stop_token_learned_of_late_drops_what_was_drawn_beyond_it():
    engine = overlapped()
    engine.add("a", 10, max_tokens=50, ignore_eos=False)
    length = len(engine.streams["a"].expected[0][0])
    assert engine.streams["a"].expected[0][1] == Finish(FinishReason.STOP, EOS)
    for _ in range(length + 2):
        engine.plan_ahead()
    *_, last = [output for _ in range(length) for output in engine.take_result()]
    assert last.finish == Finish(FinishReason.STOP, EOS)
    assert engine.used > 0
    assert engine.take_result() == []
    assert engine.used > 0
    assert engine.take_result() == []
    check_idle(engine.scheduler)
    assert engine.scheduler.stats().generated_tokens == length
    assert engine.scheduler.stats().computed_tokens == 10 + length - 1 + 2


def test_blocks_are_found_by_others_only_when_the_results_of_their_step_are_in():
    engine = overlapped(prefix_caching=True)
    engine.add("a", range(2, 12))
    engine.plan_ahead()
    engine.add("b", range(2, 12))
    engine.plan_ahead()
    engine.take_result()
    engine.add("c", range(2, 12))
    engine.plan_ahead()
    engine.take_results()
    assert [engine.streams[name].cached_tokens for name in "abc"] == [0, 0, 8]
    engine.finish()


def test_an_id_can_be_used_again_while_results_of_its_predecessor_are_awaited():
    engine = overlapped()
    engine.add("a", 10)
    engine.plan_ahead()
    engine.cancel("a", finish_reason=None)
    engine.add("a", 12)
    engine.plan_ahead()
    assert engine.take_result() == []
    (output,) = engine.take_result()
    assert output.first_position == 0
    engine.finish()


def none_free():
    """Two run, in flight: the blocks are theirs, all of them, and full."""
    engine = overlapped(blocks=16)
    engine.add("first", 2, max_tokens=60, priority=0)
    engine.add("second", 2, max_tokens=40, priority=1)
    first, second = engine.sequence("first"), engine.sequence("second")
    engine.step_until(lambda: first.num_computed == 31)
    engine.plan_ahead()
    assert engine.used == 16
    assert [seq.num_computed for seq in (first, second)] == [seq.capacity for seq in (first, second)]
    return engine, second


def test_nobody_is_preempted_for_blocks_that_are_about_to_come_back():
    engine, _ = none_free()
    engine.cancel("second")
    assert engine.plan_ahead() is None
    assert engine.scheduler.stats().preemptions == 0
    engine.take_result()
    assert engine.plan_ahead().num_tokens == [1]
    engine.take_result()
    engine.finish()


def test_results_for_a_preempted_sequence_are_ignored_and_computed_again():
    engine, second = none_free()
    had = len(second.output)
    assert engine.plan_ahead() is None
    assert engine.scheduler.stats().preemptions == 1
    assert engine.used == 16
    assert [output.request_id for output in engine.take_result()] == ["first"]
    assert len(second.output) == had
    assert second.num_tokens == 2 + had
    assert engine.used < 16
    engine.finish()


@pytest.mark.parametrize(("later", "answer"), [(0, [[]]), (0, [[1], [1]]), (0, []), (1, [[5]])])
def test_results_of_another_plan_or_step_are_an_executor_error(later, answer):
    engine = Harness()
    engine.add("a")
    plan = engine.scheduler.schedule()
    with pytest.raises(ExecutorError):
        engine.scheduler.update(plan, StepResult(plan.step_id + later, answer))
