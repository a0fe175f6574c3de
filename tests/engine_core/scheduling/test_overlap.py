"""What happens to sequences between the planning of a step and the arrival of its results."""

from __future__ import annotations

import pytest

from engine_core.errors import ExecutorError
from engine_core.request import FinishCause
from engine_core.step import StepResult

from .audit import check_holders, check_idle
from .harness import Harness


class Overlapped(Harness):
    """Plans and results apart: ``plan_ahead`` executes a step, ``settle`` takes in the oldest one's results."""

    def __init__(self, **config):
        super().__init__(**config)
        self.waiting = []

    def plan_ahead(self):
        plan = self.scheduler.schedule()
        if plan is not None:
            self.waiting.append((plan, self.executor.execute(plan)))
        return plan

    def settle(self):
        plan, result = self.waiting.pop(0)
        self.executor.settle(plan.step_id)
        outputs = self.scheduler.take_ended() + self.scheduler.update(plan, result)
        check_holders(self.scheduler)
        for output in outputs:
            self.streams[output.request_id].take(output)
        return outputs


def test_a_cancelled_sequence_keeps_its_blocks_until_its_step_is_over_and_then_says_nothing():
    engine = Overlapped()
    engine.add("a", 10)
    engine.plan_ahead()
    engine.cancel("a")
    assert engine.used == 3
    (end,) = engine.settle()
    assert (end.token_ids, end.finish.cause) == ([], FinishCause.CANCELLED)
    assert engine.used == 0
    check_idle(engine.scheduler)


def test_blocks_of_a_step_in_flight_are_not_handed_out():
    engine = Overlapped(blocks=16)
    engine.add("a", 40)
    engine.plan_ahead()
    engine.cancel("a")
    engine.add("b", 40)
    assert engine.plan_ahead() is None
    engine.settle()
    assert engine.plan_ahead() is not None


def test_blocks_come_back_with_the_last_step_that_uses_them():
    engine = Overlapped(max_num_batched_tokens=8)
    engine.add("a", 30)
    for _ in range(3):
        engine.plan_ahead()
    engine.cancel("a")
    for left in (8, 8, 0):
        engine.settle()
        assert engine.used == left
    check_idle(engine.scheduler)


def test_a_prompt_goes_on_while_the_results_of_its_first_chunks_are_awaited():
    engine = Overlapped(max_num_batched_tokens=8)
    engine.add("a", 20)
    assert [engine.plan_ahead().num_tokens for _ in range(3)] == [[8], [8], [4]]
    assert engine.plan_ahead() is None
    for _ in range(3):
        engine.settle()
    assert engine.plan_ahead().num_tokens == [1]
    engine.settle()
    engine.finish()


def test_an_id_can_be_used_again_while_results_of_its_predecessor_are_awaited():
    engine = Overlapped()
    engine.add("a", 10)
    engine.plan_ahead()
    engine.cancel("a", cause=None)
    engine.add("a", 12)
    engine.plan_ahead()
    assert engine.settle() == []
    (output,) = engine.settle()
    assert output.first_position == 0
    engine.finish()


def one_left_out():
    """Three run: the last gets no budget and lacks a block, none is free, and the others are in flight."""
    engine = Overlapped(blocks=16, max_num_batched_tokens=2)
    engine.add("last", 2, max_tokens=40, priority=2)
    engine.add("first", 2, max_tokens=60, priority=0)
    sequences = engine.scheduler._sequences
    last, first = (sequences.groups[name].members[0] for name in ("last", "first"))
    engine.step_until(lambda: last.num_computed > 8 and last.num_computed == last.capacity - 1)
    engine.plan_ahead()
    engine.add("second", 20, max_tokens=40, priority=1)
    engine.plan_ahead()  # admitted only because the others await their tokens
    engine.settle()
    engine.settle()
    assert [seq.group.request.request_id for seq in sequences.running] == ["first", "second", "last"]
    engine.step_until(lambda: engine.used == 16)
    assert last.num_computed == last.capacity
    assert first.num_computed < first.capacity
    engine.plan_ahead()
    return engine


def test_nobody_is_preempted_for_blocks_that_are_about_to_come_back():
    engine = one_left_out()
    engine.cancel("second")
    assert engine.plan_ahead() is None
    assert engine.scheduler.stats().preemptions == 0
    engine.settle()
    assert engine.plan_ahead().num_tokens == [1, 1]
    engine.settle()
    engine.finish()


def test_results_for_a_preempted_sequence_are_ignored_and_computed_again():
    engine = one_left_out()
    sequences = engine.scheduler._sequences
    second = sequences.groups["second"].members[0]
    had = second.num_tokens
    sequences.preempt(second)
    assert engine.used == 16
    engine.settle()
    assert second.num_tokens == had
    assert engine.used < 16
    engine.finish()


@pytest.mark.parametrize("answer", [[[]], [[1], [1]], []])
def test_results_that_do_not_answer_the_plan_are_an_executor_error(answer):
    engine = Harness()
    engine.add("a")
    plan = engine.scheduler.schedule()
    with pytest.raises(ExecutorError):
        engine.scheduler.update(plan, StepResult(plan.step_id, answer))


def test_results_of_another_step_are_an_executor_error():
    engine = Harness()
    engine.add("a")
    plan = engine.scheduler.schedule()
    with pytest.raises(ExecutorError):
        engine.scheduler.update(plan, StepResult(plan.step_id + 1, [[5]]))
