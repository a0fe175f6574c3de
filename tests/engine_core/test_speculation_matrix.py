"""Every drafter, for every kind of model, with every number of drafts, whatever goes on: the bits of an engine without.

``make test-speculation`` runs these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine_core.startup import StartedEngine

from .answers import answer_of, differences
from .engines import Outcome
from .speculated_workload import PARAMS, Answers, answers_of, requests, rest_of, splits
from .speculating import CONDITIONS, CONFIGS, DRAFTERS, WEIGHTS, Drafter, engine_of, every_draft, make_target

pytestmark = pytest.mark.speculation

TARGETS = [*WEIGHTS, *CONFIGS]
MOST = 8


@dataclass(frozen=True)
class Known:
    """A model, and what it answers without drafts."""

    name: str
    directory: Path
    """For what drafts for it."""
    model: Path
    answers: Answers
    numerics: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    name: str = request.param
    directory = tmp_path_factory.mktemp("model")
    model, options = make_target(name, directory / "target"), WEIGHTS.get(name, {})
    with engine_of(model, **options) as engine:
        return Known(name, directory, model, answers_of(engine, requests()), engine.executor.numerics, options)


def cells() -> Iterator[Any]:
    """All numbers of drafts for the bundled model; for the others, all that may go on, each with another number."""
    for target in TARGETS:
        for name, drafter in DRAFTERS.items():
            for place, (condition, under) in enumerate(CONDITIONS.items()):
                if target not in drafter.targets or not (drafter.in_stages or under.stages == 1):
                    continue
                counts = range(1, MOST + 1) if target == "bundled" else [1 + (place + len(target)) % MOST]
                for count in counts:
                    yield pytest.param(target, drafter, count, condition, id=f"{target}, {name} {count}, {condition}")


def pairs(targets: list[str]) -> list[Any]:
    """Those models, each with all its drafters."""
    return [
        pytest.param(target, drafter, id=f"{target}, {drafter}")
        for target in targets
        for drafter in DRAFTERS.values()
        if target in drafter.targets
    ]


@pytest.mark.parametrize(("known", "drafter", "count", "condition"), list(cells()), indirect=["known"])
def test_answers_are_the_same(known: Known, drafter: Drafter, count: int, condition: str) -> None:
    speculation = drafter.options(known.model, known.directory, count)
    asked = [replace(each, speculation=place % 4 > 0) for place, each in enumerate(requests())]
    # Where there is little room, the policy takes too few drafts of a random model to meet all cases.
    with (
        every_draft() if count % 2 or condition != "room" else nullcontext(),
        engine_of(known.model, speculation, condition, **known.options) as engine,
    ):
        assert differences(answers_of(engine, asked), known.answers) == []
        stats = engine.core.stats()
        print(f"{stats.accepted_draft_tokens} of {stats.draft_tokens} drafts accepted in {stats.steps} steps")
        assert stats.accepted_draft_tokens > 0
        # Of few drafts of a model that repeats itself, all may be right.
        assert stats.accepted_draft_tokens < stats.draft_tokens or stats.draft_tokens < 40
        assert not CONDITIONS[condition].preempts or stats.preemptions
        assert stats.kv_blocks_used == stats.state_slots_used == 0
        assert engine.executor.numerics == known.numerics


@pytest.mark.parametrize(("known", "drafter"), pairs(TARGETS), indirect=["known"])
@pytest.mark.parametrize("condition", ["room", "overlapping steps, few blocks"])
def test_answers_go_on_from_every_split(known: Known, drafter: Drafter, condition: str) -> None:
    resume = splits(known.answers, 1 if known.name == "bundled" else 5)
    with engine_of(known.model, drafter.options(known.model, known.directory, 3), condition, **known.options) as engine:
        rest = answers_of(engine, requests(resume=resume))
    expected = {(split, int(split.split("/")[1])): rest_of(known.answers, split) for split in resume}
    assert differences(rest, expected) == []


@pytest.mark.parametrize(("known", "drafter"), pairs(["bundled", "delta net"]), indirect=["known"])
@pytest.mark.parametrize("condition", ["chunks", "few blocks", "overlapping steps", "overlapping steps, few blocks"])
def test_neighbours_that_come_and_go_change_nothing(known: Known, drafter: Drafter, condition: str) -> None:
    """Requests are added between steps, and some choices are cancelled; what came until then was right."""
    with engine_of(known.model, drafter.options(known.model, known.directory, 4), condition, **known.options) as engine:
        for seed in range(3):
            whole, ended = _come_and_go(engine, random.Random(seed))
            assert differences(whole, {key: known.answers[key] for key in whole}) == []
            for key, (tokens, logprobs, _, _) in ended.items():
                assert tokens == known.answers[key][0][: len(tokens)]
                assert len(logprobs) == 0 or sum(map(len, logprobs)) == len(tokens)
            assert engine.core.stats().kv_blocks_used == engine.core.stats().state_slots_used == 0


def _come_and_go(engine: StartedEngine, rng: random.Random) -> tuple[Answers, Answers]:
    """Whole answers, and those that were cut off."""
    coming, outcomes, cancelled = requests(), dict[tuple[str, int], Outcome](), set[tuple[str, int]]()
    rng.shuffle(coming)
    while coming or engine.core.has_work():
        if coming and rng.random() < 0.4:
            engine.core.add(coming.pop())
        for output in engine.core.step() if engine.core.has_work() else ():
            outcomes.setdefault((output.request_id, output.choice), Outcome()).outputs.append(output)
        running = [key for key, outcome in outcomes.items() if outcome.outputs[-1].finish is None]
        if running and rng.random() < 0.05:
            cancelled.add(ending := rng.choice(running))
            engine.core.cancel(*ending)
    assert outcomes.keys() == {(name, choice) for name, params in PARAMS.items() for choice in range(params.n)}
    answers = {key: answer_of(outcome) for key, outcome in outcomes.items()}
    return (
        {key: each for key, each in answers.items() if key not in cancelled},
        {key: each for key, each in answers.items() if key in cancelled},
    )
