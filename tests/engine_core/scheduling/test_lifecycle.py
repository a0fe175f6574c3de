"""n > 1: choices share the blocks their prompt fills, whatever happens to the one that computes it.

All without prefix caching, so that sharing is by reference counts alone. Blocks hold 4 tokens.
"""

from __future__ import annotations

from .harness import Harness


def test_the_first_choice_computes_the_prompt_and_others_start_from_its_blocks():
    engine = Harness()
    engine.add("r", 10, n=3, max_tokens=6)
    assert engine.next_batch() == [("r", 0, 10)]
    assert engine.used == 3
    engine.step()
    # Two tokens of the prompt lie in a block that is not full: each choice computes its own.
    assert engine.batch == [("r", 0, 1), ("r", 1, 2), ("r", 2, 2)]
    assert engine.used == 2 + 3
    assert [new.num_computed_tokens for new in engine.plan.new] == [8, 8]
    assert len({tuple(new.block_ids[0][:2]) for new in engine.plan.new}) == 1
    tokens = engine.finish()["r"]
    assert len({tuple(output) for output in tokens.values()}) == 3


def test_a_prompt_shorter_than_a_block_is_computed_by_all_at_once():
    engine = Harness()
    engine.add("r", 4, n=3)
    assert engine.next_batch() == [("r", 0, 4), ("r", 1, 4), ("r", 2, 4)]
    engine.finish()


def test_the_prompt_is_kept_for_choices_that_start_after_the_first_has_ended():
    engine = Harness(max_num_seqs=1)
    engine.add("r", 10, n=3, max_tokens=2)
    engine.step(2)
    assert engine.used == 2
    assert engine.next_batch() == [("r", 1, 2)]
    engine.finish()


def test_when_the_first_choice_is_cancelled_midway_the_next_computes_the_prompt():
    engine = Harness(max_num_batched_tokens=8)
    engine.add("r", 20, n=3)
    engine.add("s", 20)
    engine.step()
    engine.cancel("r", 0)
    assert engine.used == 0
    assert engine.next_batch() == [("r", 1, 8)]  # in front of everybody else
    engine.step()
    assert engine.next_batch() == [("r", 1, 4), ("r", 2, 4)]
    engine.finish()
    assert set(engine.streams["r"].finish) == {0, 1, 2}


def test_choices_whose_prompt_is_being_computed_let_others_pass():
    engine = Harness(max_num_batched_tokens=10)
    engine.add("r", 18, n=3)
    engine.add("s", 9)
    engine.step()
    engine.cancel("r", 0)
    engine.step()
    assert engine.next_batch() == [("r", 1, 8), ("s", 0, 2)]
    assert engine.next_batch() == [("r", 1, 1), ("s", 0, 7), ("r", 2, 2)]
    engine.finish()


def preempted_midway(**params):
    """A request that has computed part of its prompt when another one needs its blocks."""
    engine = Harness(blocks=16, max_num_batched_tokens=3)
    engine.add("old", 28, max_tokens=30)
    engine.step_until(lambda: engine.streams["old"].tokens[0])
    engine.add("r", 26, max_tokens=3, priority=1, **params)
    engine.step_until_preemption()
    assert 0 < engine.streams["r"].prefilled < 24
    return engine


def test_when_the_first_choice_is_preempted_midway_the_others_wait_for_its_return():
    engine = preempted_midway(n=2)
    stats = engine.scheduler.stats()
    assert (stats.waiting_reqs, stats.returning_reqs, stats.waiting_seqs) == (0, 1, 2)
    engine.step_until(lambda: engine.plan.new)
    assert engine.batch[-1][:2] == ("r", 0)
    engine.step_until(lambda: ("r", 1) in engine.planned)
    assert engine.plan.new[0].num_computed_tokens == 24
    engine.finish()


def test_a_choice_that_comes_back_starts_from_the_prompt_of_one_that_runs():
    engine = Harness(blocks=16)
    engine.add("r", 33, n=4, max_tokens=20)
    engine.step_until_preemption()
    engine.step_until(lambda: engine.plan.new)
    new = engine.plan.new[0]
    assert new.num_computed_tokens == 32
    engine.finish()


def test_a_prompt_kept_for_waiting_choices_gives_way_to_a_running_sequence():
    engine = Harness(blocks=16, max_num_seqs=2)
    engine.add("grows", 2, max_tokens=30)
    engine.add("r", 33, n=2, max_tokens=1, priority=1)
    engine.step()
    assert engine.used == 1 + 8  # the first choice has ended; the second is kept waiting by the next request
    engine.add("grows too", 2, max_tokens=30)
    engine.step()
    engine.step_until(lambda: engine.used != 8 + sum(-(-n // 4) for n in engine.computed))
    assert engine.used == sum(-(-n // 4) for n in engine.computed)
    assert engine.planned == [("grows", 0), ("grows too", 0)]
    assert engine.scheduler.stats().preemptions == 0
    engine.step_until(lambda: ("r", 1) in engine.planned)
    assert engine.batch[-1] == ("r", 1, 33)
    engine.finish()


def test_a_prompt_kept_for_waiting_choices_gives_way_to_an_urgent_request():
    engine = Harness(blocks=16, max_num_seqs=1)
    engine.add("r", 33, n=2, max_tokens=1, priority=1)
    engine.step()
    assert engine.used == 8
    engine.add("urgent", 40)
    assert engine.next_batch() == [("urgent", 0, 40)]
    while engine.scheduler.stats().running_seqs:
        engine.step()
    assert engine.next_batch() == [("r", 1, 33)]
    engine.finish()


def test_a_prompt_that_running_choices_use_is_not_given_up_for_nothing():
    engine = Harness(blocks=16, max_num_seqs=3)
    engine.add("grows", 2, max_tokens=30)
    engine.add("r", 17, n=2, max_tokens=20, priority=1)
    engine.add("z", 2, max_tokens=40, priority=2)
    engine.step_until_preemption()
    assert engine.planned == [("grows", 0), ("r", 0)]
    engine.step_until(lambda: ("r", 1) in engine.planned)
    assert engine.plan.new[0].num_computed_tokens == 16
    engine.finish()


def test_of_two_prompts_kept_the_lower_ranked_gives_way():
    engine = Harness(blocks=16, max_num_seqs=1)
    for name, priority in (("q", 2), ("r", 1)):
        engine.add(name, 13, n=2, max_tokens=1, priority=priority)
        engine.step()
    assert engine.used == 3 + 3
    engine.add("urgent", 50, max_tokens=1)
    assert engine.next_batch() == [("urgent", 0, 50)]
    assert engine.next_batch() == [("r", 1, 1)]
    assert engine.next_batch() == [("q", 1, 13)]
    engine.finish()


def test_prompt_logprobs_are_reported_as_computed_and_before_the_others_start():
    engine = Harness(max_num_batched_tokens=9)
    engine.add("r", 20, n=2, prompt_logprobs=0)
    assert [len(engine.step()["r", 0].prompt_logprobs) for _ in range(2)] == [9, 9]
    assert engine.planned == [("r", 0)]
    assert len(engine.step()["r", 0].prompt_logprobs) == 1
    assert engine.plan.total_tokens == 2
    assert engine.next_batch() == [("r", 0, 1), ("r", 1, 4)]
    assert engine.plan.new[0].params.prompt_logprobs is None
    engine.finish()


def test_the_time_in_the_queue_ends_when_a_request_is_scheduled_first():
    engine = Harness(max_num_seqs=2)
    engine.add("a", 4, n=2, max_tokens=3)
    engine.add("b", 4, n=2)
    told = {}
    while engine.scheduler.has_work():
        start = engine.now
        plan = engine.scheduler.schedule()
        engine.now += 5.0  # the step takes its time, which is not the queue's
        for output in engine.scheduler.update(plan, engine.executor.submit(plan).result()):
            if output.queue_seconds is not None:
                assert output.request_id not in told
                told[output.request_id] = (output.queue_seconds, start)
    assert told["a"] == (0.0, 0.0)
    assert told["b"][0] == told["b"][1] > 0.0
