"""How a choice ends: by its tokens, by its limits, by cancellation, by its deadline, or before it began (resume)."""

from __future__ import annotations

import pytest

from engine_core.request import Finish, FinishReason
from engine_core.scheduling import Scheduler
from engine_core.step import Failure, StepResult

from .audit import check_idle
from .checked_executor import EOS, failing
from .harness import Harness, make_request

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
CANCELLED, DEADLINE = FinishReason.CANCELLED, FinishReason.DEADLINE


def feed(scheduler: Scheduler, *tokens):
    """Let a lone sequence draw the given tokens, a list of them per step; its outputs."""
    outputs = []
    for drawn in tokens:
        plan = scheduler.schedule()
        assert plan is not None
        assert len(plan.seq_ids) == 1
        outputs += scheduler.update(plan, StepResult(plan.step_id, [drawn if isinstance(drawn, list) else [drawn]]))
    return outputs


def ends(engine: Harness):
    return {name: (out.finish and out.finish.finish_reason) for name, out in engine.step().items()}


@pytest.mark.parametrize(
    ("params", "drawn", "finish"),
    [
        ({"ignore_eos": False}, [5, EOS], Finish(STOP, EOS)),
        ({"ignore_eos": False, "min_tokens": 2}, [5, EOS, EOS], Finish(STOP, EOS)),
        ({"ignore_eos": True}, [EOS, EOS, EOS, EOS], Finish(LENGTH)),
        ({"stop_token_ids": frozenset({7})}, [5, EOS, 7], Finish(STOP, 7)),
        ({"stop_token_ids": frozenset({7}), "min_tokens": 1}, [7, 7], Finish(STOP, 7)),
        ({"stop_token_ids": frozenset({7})}, [5, 5, 5, 7], Finish(STOP, 7)),
        ({"grammar": "", "ignore_eos": True}, [5, EOS], Finish(STOP, EOS)),
        ({"grammar": "", "min_tokens": 3}, [5, EOS], Finish(STOP, EOS)),
        ({"grammar": "", "min_tokens": 2, "stop_token_ids": frozenset({EOS})}, [EOS], Finish(STOP, EOS)),
        ({"grammar": "", "min_tokens": 1, "stop_token_ids": frozenset({7})}, [7, 5, 7], Finish(STOP, 7)),
        ({"max_tokens": 1}, [5], Finish(LENGTH)),
        ({"max_tokens": 1, "stop_token_ids": frozenset({5})}, [5], Finish(STOP, 5)),
        ({"max_tokens": 1000}, [5] * 60, Finish(LENGTH)),
    ],
)
def test_tokens_and_limits_end_a_choice_with_the_token_that_did_it_delivered(params, drawn, finish):
    scheduler = Harness().scheduler
    scheduler.add(make_request("r", 4, **params))
    outputs = feed(scheduler, *drawn)
    assert [token for output in outputs for token in output.token_ids] == drawn
    assert [output.finish for output in outputs] == [None] * (len(drawn) - 1) + [finish]
    check_idle(scheduler)


def test_a_cancelled_request_frees_its_blocks_and_says_so_once():
    engine = Harness()
    engine.add("a", 10, n=2)
    engine.add("b", 10)
    engine.step()
    assert engine.cancel("a")
    assert not engine.cancel("a")
    assert engine.used == 3
    assert ends(engine) == {("a", 0): CANCELLED, ("a", 1): CANCELLED, ("b", 0): None}
    assert engine.batch == [("b", 0, 1)]
    assert len(engine.plan.released) == 1  # the other choice was never shown to the workers
    assert ends(engine) == {("b", 0): None}


def test_one_choice_is_cancelled_wherever_it_is():
    engine = Harness(max_num_seqs=1)
    engine.add("a", 10, n=4)
    assert engine.cancel("a", 2)  # without a sequence of its own yet
    assert engine.cancel("a", 0)  # in the queue: the next one takes its place
    assert engine.next_batch() == [("a", 1, 10)]
    assert engine.cancel("a", 1)
    assert not engine.cancel("a", 7)
    assert not engine.cancel("nobody")
    assert ends(engine) == {("a", 1): CANCELLED, ("a", 3): None}
    assert engine.cancel("a", 3)
    engine.step()
    check_idle(engine.scheduler)


def test_a_cancel_reports_the_cause_it_is_given_or_nothing():
    engine = Harness()
    for name in "abc":
        engine.add(name)
    engine.step()
    engine.cancel("a", finish_reason=FinishReason.STOP)
    engine.cancel("b", finish_reason=None)
    engine.add("b", 9)
    outputs = engine.step()
    assert outputs["a", 0].finish == Finish(STOP)
    assert outputs["a", 0].first_position == 1
    assert outputs["b", 0].first_position == 0
    assert outputs["b", 0].cached_tokens == 0
    assert engine.batch == [("c", 0, 1), ("b", 0, 9)]


def test_a_deadline_ends_a_request_in_the_queue_and_while_it_runs():
    engine = Harness(max_num_seqs=1)
    engine.add("runs", 4, deadline=5.0, max_tokens=50)
    engine.add("waits", 4, deadline=3.0)
    engine.add("stays", 4, deadline=100.0)
    assert ends(engine) == {("runs", 0): None}
    engine.now = 2.9
    assert ends(engine) == {("runs", 0): None}
    engine.now = 3.0
    assert ends(engine) == {("waits", 0): DEADLINE, ("runs", 0): None}
    engine.now = 10.0
    assert ends(engine) == {("runs", 0): DEADLINE, ("stays", 0): None}
    engine.finish()


def test_deadlines_of_requests_that_have_ended_do_not_pile_up():
    scheduler = Harness().scheduler
    scheduler.add(make_request("stays", deadline=1e9))
    for serial in range(2000):
        scheduler.add(make_request(str(serial), deadline=1e9))
        scheduler.cancel(str(serial), finish_reason=None)
    assert scheduler._lifecycle.deadlines.expired(1e9) == ["stays"]


@pytest.mark.parametrize(
    ("params", "output", "finish"),
    [
        ({"max_tokens": 3}, (5, 6, 7), Finish(LENGTH)),
        ({"max_tokens": 60}, (5,) * 58, Finish(LENGTH)),
        ({"stop_token_ids": frozenset({7})}, (5, 7), Finish(STOP, 7)),
        ({"ignore_eos": False}, (5, EOS), Finish(STOP, EOS)),
        ({"grammar": "", "min_tokens": 3}, (5, EOS), Finish(STOP, EOS)),
    ],
)
def test_a_resumed_choice_that_was_complete_ends_at_once(params, output, finish):
    """Whoever resumes may have got the last token and not the end."""
    engine = Harness()
    engine.add("r", 6, **params, resume={0: output})
    ((name, news),) = engine.step().items()
    assert name == ("r", 0)
    assert (news.first_position, news.token_ids, news.finish) == (len(output), [], finish)
    assert engine.plan is None
    check_idle(engine.scheduler)


def test_eos_is_ignored_in_resumed_output_before_min_tokens():
    scheduler = Harness().scheduler
    scheduler.add(make_request("r", 4, ignore_eos=False, min_tokens=2, resume={0: (5, EOS)}))
    (output,) = feed(scheduler, EOS)
    assert (output.first_position, output.finish) == (2, Finish(STOP, EOS))


def errors(engine: Harness):
    """Errors and number of tokens of the choices that failed."""
    streams = engine.streams.items()
    return {
        (name, choice): (finish.error, len(stream.tokens[choice]))
        for name, stream in streams
        for choice, finish in stream.finish.items()
        if finish.finish_reason is FinishReason.ERROR
    }


def test_a_choice_that_fails_ends_with_the_error_after_its_tokens_and_others_go_on():
    engine = Harness(max_concurrent_steps=2)
    engine.add("a", 10, n=3, max_tokens=9, grammar=failing(4, choice=1))
    engine.add("b", 10, max_tokens=9)
    for _ in range(6):
        engine.plan_ahead()
        if len(engine.waiting) == 2:
            engine.take_result()
    engine.take_results()
    engine.finish()
    assert errors(engine) == {("a", 1): ("1 fails at 4", 4)}
    assert all(stream.done for stream in engine.streams.values())


@pytest.mark.parametrize("drafts", [None, "right"])
def test_a_resumed_choice_fails_where_it_would_have(drafts):
    for start in range(6):
        engine = Harness(drafts=drafts)
        engine.add("a", 10, max_tokens=9, grammar=failing(5), logprobs=0)
        tokens = engine.finish()["a"][0]
        engine.add(
            "b",
            engine.streams["a"].request.prompt_token_ids,
            max_tokens=9,
            grammar=failing(5),
            logprobs=0,
            resume={0: tuple(tokens[:start])} if start else None,
        )
        assert engine.finish()["b"][0] == tokens
        assert errors(engine) == {(name, 0): ("0 fails at 5", 5) for name in "ab"}


def test_a_choice_fails_before_its_prompt_is_computed_and_another_one_computes_it():
    engine = Harness(max_num_batched_tokens=8)
    engine.add("a", 20, n=2, grammar=failing(-1), prompt_logprobs=0)
    ((_, end),) = engine.step().items()
    assert (end.choice, end.token_ids, end.finish.error) == (0, [], "0 fails at -1")
    engine.finish()
    assert errors(engine) == {("a", 0): ("0 fails at -1", 0)}


def test_a_token_that_ends_a_choice_goes_before_a_failure_behind_it():
    scheduler = Harness().scheduler
    scheduler.add(make_request("r", 4, stop_token_ids=frozenset({7})))
    plan = scheduler.schedule()
    (output,) = scheduler.update(plan, StepResult(plan.step_id, [[7]], failed={plan.seq_ids[0]: Failure("no way on")}))
    assert (output.token_ids, output.finish) == ([7], Finish(STOP, 7))
    check_idle(scheduler)
