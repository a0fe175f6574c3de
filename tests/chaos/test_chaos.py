"""A short chaos run, and tests of its checker and schedule."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from ringline import Content, Delta, Finished, FinishReason, Started, Usage

from tests.chaos import budgets
from tests.chaos.faults import Kind, schedule
from tests.chaos.fleet import Fleet
from tests.chaos.models import OPENING, make
from tests.chaos.outcome import Defect, Gap, Outcome, find_defects
from tests.chaos.pauses import SingleFault, pauses_of
from tests.chaos.run import Options, run
from tests.chaos.workload import RequestSpec
from text_core.tokenizer import Tokenizer

pytestmark = pytest.mark.long

SEEDS = (151, 326, 505)
"""Each kills both engines, one at a time, and a detokenizer, and hangs a processor."""
LITTLE = {"seconds": 13, "rolling_pause": 1.5, "engines": 2, "concurrency": 10, "pause": 0.3, "per_kind": 1}


@pytest.mark.timeout(600)
async def test_nothing_is_lost_in_a_little_chaos() -> None:
    moved = 0
    for seed in SEEDS:
        report = await run(Options(seed=seed, **LITTLE))
        print("\n".join(report.lines()))
        assert not report.problems
        assert report.faults[Kind.KILL] >= 3
        assert report.faults[Kind.HANG] >= 1
        assert all(phase.tally.requests for phase in report.phases[:-1])
        if moved := sum(phase.tally.moved for phase in report.phases):
            break  # else no fault hit a request: on a fast machine few are in flight
    assert moved


def answer(ids: list[int], text: str) -> Outcome:
    outcome = Outcome(usage=Usage(3, 0, len(ids)))
    for position, token_id in enumerate(ids):
        outcome.add(Delta(0, position, text[position], (token_id,), None))
    outcome.add(Finished(0, FinishReason.LENGTH, None, None))
    return outcome


RIGHT = answer([7, 8, 9], "abc")


def _end_again(outcome: Outcome, beam_score: float) -> None:
    """With the score of a beam, which the right answer lacks."""
    outcome.choices[0].end = None
    outcome.add(Finished(0, FinishReason.LENGTH, None, None, beam_score=beam_score))


@pytest.mark.parametrize(
    ("harm", "defect"),
    [
        (lambda outcome: setattr(outcome, "error", "Unavailable: gone"), Defect.LOST),
        (lambda outcome: outcome.choices[0].ids.pop(), Defect.LOST),
        (lambda outcome: outcome.add(Delta(0, 4, "c", (9,), None)), Defect.LOST),
        (lambda outcome: outcome.add(Delta(0, 2, "c", (9,), None)), Defect.DUPLICATED),
        (lambda outcome: operator.setitem(outcome.choices[0].ids, 1, 1), Defect.ALTERED),
        (lambda outcome: setattr(outcome.choices[0], "text", "abd"), Defect.ALTERED),
        (lambda outcome: outcome.choices[0].add_part(Content("abc")), Defect.ALTERED),
        (lambda outcome: setattr(outcome.choices[0], "end", (FinishReason.STOP, 9, None)), Defect.ALTERED),
        (lambda outcome: _end_again(outcome, beam_score=-0.5), Defect.ALTERED),
        (lambda outcome: outcome.prompt_logprobs.append(0.0), Defect.ALTERED),
        (lambda outcome: setattr(outcome, "usage", Usage(3, 0, 4)), Defect.WRONG_USAGE),
        (lambda outcome: setattr(outcome, "stuck", True), Defect.STUCK),
    ],
    ids=["fails", "short", "gap", "repeat", "token", "text", "parts", "end", "beam", "scores", "usage", "no end"],
)
def test_the_checker_finds(harm: Callable[[Outcome], object], defect: Defect) -> None:
    outcome = deepcopy(RIGHT)
    assert not find_defects(outcome, RIGHT, cancelled=False)
    harm(outcome)
    assert defect in find_defects(outcome, RIGHT, cancelled=False)


def test_what_a_client_cancelled_may_be_short_but_not_wrong() -> None:
    part = Outcome()
    part.add(Delta(0, 0, "a", (7,), None))
    assert not find_defects(part, RIGHT, cancelled=True)
    assert Defect.LOST in find_defects(part, RIGHT, cancelled=False)
    part.add(Delta(0, 1, "b", (9,), None))
    assert Defect.ALTERED in find_defects(part, RIGHT, cancelled=True)


def test_the_count_of_reasoning_finds_what_exceeds_a_budget(tmp_path: Path) -> None:
    make(None, tmp_path / "model")
    closing, line_break = OPENING["think"] + 1, Tokenizer.from_directory(tmp_path / "model").encode("\n")[0]

    def check(budget: int, counted: int, *ids: int, begun: bool = True, **options: object) -> None:
        begins = {"template_args": {"opens": "<think>"}} if begun else {}
        limits = {"max_reasoning_tokens": budget, "parse": {"reasoning": "think"}, **begins, **options}
        given = Outcome(usage=Usage(3, 0, len(ids), counted))
        given.add(Delta(0, 0, "", ids, None))
        budgets.check([RequestSpec("x", "x", options=limits)], {"x": given}, tmp_path / "model")

    check(1, 3, 300, closing, line_break, 301)
    check(1, 3, OPENING["think"], 300, closing, 301, begun=False)
    check(0, 0, 300, OPENING["think"], 301, begun=False)
    check(0, 1, closing, 301, closing)
    check(9, 2, 300, 301, bad_words=["</think>"])
    with pytest.raises(AssertionError, match="2 tokens of reasoning instead of 1"):
        check(1, 3, 300, 301, closing)
    with pytest.raises(AssertionError, match="but there are 3"):
        check(1, 2, 300, closing, line_break)
    with pytest.raises(AssertionError, match="ended=1"):
        check(9, 2, 300, closing, bad_words=["</think>"])


def test_a_pause_lies_between_two_deltas_and_has_a_reason() -> None:
    outcome = Outcome()
    outcome.add(Delta(0, 0, "a", (7,), None))
    outcome.add(Started("model", "numerics", identical=True, reason="engine engine-0 was lost"))
    outcome.add(Delta(0, 1, "b", (8,), None))
    outcome.add(Delta(0, 2, "c", (9,), None))
    assert [pause.reason for pause in outcome.pauses] == ["engine engine-0 was lost"]


def test_a_pause_belongs_to_the_fault_that_is_in_it_if_it_was_noticed() -> None:
    faults = [
        SingleFault("engine", Kind.KILL, 10.0),
        SingleFault("engine", Kind.KILL, 20.0),
        SingleFault("processor", Kind.CUT, 30),
    ]
    gaps = [
        Gap(9.9, 10.03, announced=True),
        Gap(9.9, 10.02, announced=False),
        Gap(20.1, 23.1, announced=False),
        Gap(12.0, 15.0, announced=True),
    ]
    engine, processor = pauses_of(faults, gaps, noticed=0.2)
    assert (engine.faults, engine.seconds) == (2, [pytest.approx(0.13), 3.0])
    assert (processor.faults, processor.seconds) == (1, [])


def test_a_seed_replays_its_faults_and_ten_minutes_have_enough_of_them(tmp_path: Path) -> None:
    faults = schedule(5, 600, Fleet(tmp_path))
    assert faults == schedule(5, 600, Fleet(tmp_path)) != schedule(6, 600, Fleet(tmp_path))
    counts = Counter(fault.kind for fault in faults)
    assert counts[Kind.KILL] >= 100
    assert counts[Kind.HANG] >= 40
