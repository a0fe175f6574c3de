"""A rolling change of weights in the smallest ring, and tests of its checker."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from copy import deepcopy

import pytest
from ringline import Delta, Finished, FinishReason, Started, Usage

from tests.chaos.outcome import Outcome
from tests.chaos.workload import RequestSpec
from tests.rolling.run import MODEL_GONE, Options, Rollout, _check_answers, run
from tests.rolling.variants import Change


@pytest.mark.wide
@pytest.mark.timeout(300)
async def test_no_request_is_lost_and_none_goes_on_with_other_weights() -> None:
    """With one engine there is none for a while: requests in progress end with MODEL_GONE, the others wait."""
    options = Options(1, [Change.WEIGHTS], size=1, rate=2.0, calm=1.0, patience=1.0, longest_pause=math.inf, kinds=6)
    (rollout,) = await run(options, Rollout.show)
    assert not rollout.problems


SPEC = RequestSpec("greedy", "Once")


def answer(model: str, ids: list[int]) -> Outcome:
    outcome = Outcome(usage=Usage(3, 0, len(ids)))
    outcome.add(Started(model, "numerics", True, ""))
    for position, token_id in enumerate(ids):
        outcome.add(Delta(0, position, chr(97 + token_id), (token_id,), None))
    outcome.add(Finished(0, FinishReason.LENGTH, None, None))
    return outcome


LAST_DRAIN = 10.0
MAX_BACKOFF = 2.0
OLD, NEW = answer("old", [1, 2, 3]), answer("new", [4, 5, 6])


def checked(*outcomes: Outcome) -> Rollout:
    """Check ``outcomes`` beside one right answer of each model."""
    rollout = Rollout(Change.WEIGHTS)
    asked = [(SPEC, deepcopy(outcome)) for outcome in (OLD, NEW, *outcomes)]
    _check_answers(rollout, asked, {SPEC.name: OLD}, {SPEC.name: NEW}, LAST_DRAIN, MAX_BACKOFF)
    return rollout


def test_right_answers_are_right() -> None:
    rollout = checked()
    assert not rollout.problems
    assert rollout.by_model == {"before": 1, "after": 1}


@pytest.mark.parametrize(
    "harm",
    [
        lambda outcome: operator.setitem(outcome.choices[0].ids, 2, 6),
        lambda outcome: outcome.models.append("new"),
        lambda outcome: setattr(outcome, "models", ["unknown"]),
        lambda outcome: setattr(outcome, "error", "Unavailable: no route"),
        lambda outcome: setattr(outcome, "longest_gap", MAX_BACKOFF + 0.1),
        lambda outcome: setattr(outcome, "first_token", MAX_BACKOFF + 0.1),
    ],
    ids=["other tokens", "other model", "unknown model", "lost", "pause", "wait"],
)
def test_the_checker_finds(harm: Callable[[Outcome], object]) -> None:
    outcome = deepcopy(OLD)
    harm(outcome)
    assert checked(outcome).problems


@pytest.mark.parametrize(("after", "problem"), [(NEW, "only one of the models"), (OLD, "the same digest")])
def test_two_models_must_have_answered(after: Outcome, problem: str) -> None:
    rollout = Rollout(Change.WEIGHTS)
    asked = [(SPEC, deepcopy(OLD)) for _ in range(2)]
    _check_answers(rollout, asked, {SPEC.name: OLD}, {SPEC.name: after}, LAST_DRAIN, MAX_BACKOFF)
    (found,) = rollout.problems
    assert problem in found


@pytest.mark.parametrize("ids", [[1, 2], [1, 5]])
def test_what_only_the_model_before_could_have_finished_may_be_short_but_not_wrong(ids: list[int]) -> None:
    outcome = answer("old", ids)
    outcome.choices[0].end = None
    outcome.error, outcome.reason = "Unavailable: gone", MODEL_GONE
    rollout = checked(outcome)
    assert rollout.gone == 1
    assert bool(rollout.problems) == (ids != [1, 2])


@pytest.mark.parametrize("ids", [[], [1, 2]])
def test_no_model_is_gone_while_one_of_its_engines_is_there(ids: list[int]) -> None:
    outcome = answer("old", ids) if ids else Outcome()
    outcome.error, outcome.reason, outcome.failed = "Unavailable: gone", MODEL_GONE, LAST_DRAIN - 1.0
    outcome.choices.clear()
    (problem,) = checked(outcome).problems
    assert "was called gone while an engine had it" in problem


def test_a_request_that_began_on_the_new_model_may_not_end_so() -> None:
    outcome = deepcopy(NEW)
    outcome.error, outcome.reason = "Unavailable: gone", MODEL_GONE
    assert checked(outcome).problems
