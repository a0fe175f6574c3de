"""Drafts of drafters change no token, log probability or end: what engines answer with and without them, to the last
bit, and what they count. ``test_speculation_matrix`` has every kind of model and all that may go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine_core.request import FinishReason, Request
from engine_core.startup import StartedEngine

from ..checkpoints.twins import pruned
from .answers import differences
from .speculated_workload import (
    COPY,
    GREEDY,
    PARAMS,
    PROMPTS,
    TINY,
    Answers,
    answers_of,
    outcomes_of,
    requests,
    rest_of,
    splits,
)
from .speculating import CONDITIONS, engine_of

NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 5}


@pytest.fixture(scope="module")
def plain() -> Iterator[StartedEngine]:
    with engine_of(TINY) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plain: StartedEngine) -> Answers:
    return answers_of(plain, requests())


@pytest.fixture(scope="module")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bundled model without two of its layers."""
    model = pruned(TINY, tmp_path_factory.mktemp("draft"), [0, 2, 4])
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}


def test_the_answers_are_various(expected: Answers) -> None:
    ends = {name: finish.finish_reason for (name, _), (_, _, _, finish) in expected.items() if finish is not None}
    assert {name for name, reason in ends.items() if reason is FinishReason.STOP} >= {"stop token", "eos", "schema"}
    assert {name for name, reason in ends.items() if reason is FinishReason.LENGTH} >= {"greedy", "1.5", "penalties"}
    assert len({tuple(tokens) for tokens, _, _, _ in expected.values()}) >= 0.8 * len(expected)


@pytest.mark.parametrize("condition", ["overlapping steps", "two stages, few blocks"])
def test_runs_of_tokens_that_are_looked_up_change_nothing(
    condition: str, plain: StartedEngine, expected: Answers
) -> None:
    check(NGRAM, condition, plain, expected)


def test_a_model_that_drafts_changes_nothing(
    draft_model: dict[str, Any], plain: StartedEngine, expected: Answers
) -> None:
    check(draft_model, "overlapping steps, few blocks", plain, expected)


def check(speculation: dict[str, Any], condition: str, plain: StartedEngine, expected: Answers) -> None:
    with engine_of(TINY, speculation, condition) as engine:
        assert differences(answers_of(engine, requests()), expected) == []
        stats = engine.core.stats()
        assert 0 < stats.accepted_draft_tokens < stats.draft_tokens
        assert bool(stats.preemptions) == CONDITIONS[condition].preempts
        assert stats.kv_blocks_used == 0
        assert engine.executor.numerics == plain.executor.numerics
        assert engine.executor.model_digest == plain.executor.model_digest


def test_answers_that_others_began_go_on(expected: Answers) -> None:
    resume = splits(expected, 25)
    with engine_of(TINY, NGRAM) as engine:
        rest = answers_of(engine, requests(resume=resume))
    assert differences(rest, {(name, int(name.split("/")[1])): rest_of(expected, name) for name in resume}) == []


def test_drafts_are_counted_where_they_are_wanted(expected: Answers) -> None:
    """By choice and in all; a request that wants none has none."""
    asked = [replace(each, speculation=place % 3 > 0) for place, each in enumerate(requests())]
    with engine_of(TINY, NGRAM) as engine:
        outcomes = outcomes_of(engine, asked)
        stats = engine.core.stats()
    counts = {
        key: (each.outputs[-1].accepted_drafts, each.outputs[-1].rejected_drafts) for key, each in outcomes.items()
    }
    unwanted = {each.request_id for each in asked if not each.speculation}
    assert {counts[key] for key in counts if key[0] in unwanted} == {(0, 0)}
    assert sum(accepted for accepted, _ in counts.values()) == stats.accepted_draft_tokens > 0
    assert sum(map(sum, counts.values())) == stats.draft_tokens > stats.drafts > 0
    assert sum(stats.accepted_by_position) == stats.accepted_draft_tokens
    assert list(stats.accepted_by_position) == sorted(stats.accepted_by_position, reverse=True)
    assert stats.accepted_by_position[0] <= stats.drafts
    for outcome in outcomes.values():  # whoever ends a choice from outside has the counts so far
        so_far = [(each.accepted_drafts, each.rejected_drafts) for each in outcome.outputs if each.token_ids]
        assert so_far == sorted(so_far)
        assert len(set(so_far)) > 1 or so_far[-1] == (0, 0)


def test_text_that_repeats_itself_takes_fewer_steps(plain: StartedEngine) -> None:
    params = replace(
        GREEDY, max_tokens=60, logit_bias={COPY[3]: 60.0, COPY[4]: 60.0, COPY[5]: 60.0}, frequency_penalty=1.0
    )
    steps = {}
    for speculation in (None, NGRAM):
        with engine_of(TINY, speculation) as engine:
            answers_of(engine, [Request("one", COPY, params)])
            steps[speculation is None] = engine.core.stats().steps
    assert steps[False] < steps[True] / 2


def test_blocks_of_prefixes_hold_accepted_tokens_only(plain: StartedEngine, expected: Answers) -> None:
    """What follows an answer is computed from the blocks that the answer left."""
    names = [name for name, params in PARAMS.items() if params.n == 1 and params.grammar is None]
    longer = [
        Request(
            f"{name} again", (*PROMPTS[name], *expected[name, 0][0])[:150], replace(GREEDY, logprobs=1, max_tokens=9)
        )
        for name in names
    ]
    with engine_of(TINY, NGRAM, block_size=4) as engine:
        answers_of(engine, requests(names))
        before = engine.core.stats().prefix_hit_tokens
        found = answers_of(engine, longer)
        assert engine.core.stats().prefix_hit_tokens > before + sum(len(expected[name, 0][0]) // 2 for name in names)
    plain.core.reset_prefix_cache()
    assert differences(found, answers_of(plain, longer)) == []
