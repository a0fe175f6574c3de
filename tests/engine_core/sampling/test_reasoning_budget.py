"""The end of reasoning is forced after exactly so many tokens, whatever is sampled, and wherever a sequence goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_core.request import ReasoningBudget, SamplingParams
from engine_core.sampling.logits_processors import ProcessorSetup, SamplingRows
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.reasoning_budget import ReasoningBudgets, forced_and_banned
from tests.engine_core.engines import run, started

CLOSE, OPEN, OTHER = (7, 8, 9), (5, 6), 3
budgets = st.builds(
    ReasoningBudget,
    st.integers(0, 6),
    st.sampled_from([CLOSE, CLOSE[:1]]),
    st.sampled_from([(), OPEN]),
    blank=st.sampled_from([frozenset(), frozenset({1})]),
    begun=st.booleans(),
)


def written(budget: ReasoningBudget, drawn: list[int]) -> list[int]:
    """The output, where ``drawn`` is what the model would choose."""
    output: list[int] = []
    for token in drawn:
        output.append(following(budget, output, token))
    return output


def following(budget: ReasoningBudget, output: list[int], drawn: int) -> int:
    forced, banned = forced_and_banned(budget, output)
    assert forced is None or banned is None
    return forced if forced is not None else OTHER if drawn == banned else drawn


def start_of(budget: ReasoningBudget, output: list[int]) -> int | None:
    """Where reasoning begins that comes first."""
    blanks = len([*takewhile(budget.blank.__contains__, output)])
    if budget.opening and tuple(output[blanks : blanks + len(OPEN)]) == OPEN and blanks <= 16:
        return blanks + len(OPEN)
    return 0 if budget.begun or not budget.opening else None


@given(budget=budgets, drawn=st.lists(st.sampled_from([1, 2, 5, 6, 7, 8, 9]), max_size=24))
def test_reasoning_is_no_longer_than_its_budget(budget: ReasoningBudget, drawn: list[int]) -> None:
    output = written(budget, drawn)
    start = start_of(budget, output)
    if start is None:
        assert output == drawn
        return
    reasoning = output[start : start + budget.max_tokens]
    assert output[:start] == drawn[:start]
    if budget.closing[0] in reasoning:
        assert output == drawn, "the model ended it by itself"
        return
    end = start + budget.max_tokens
    assert tuple(output[end : end + len(budget.closing)]) == budget.closing[: max(len(output) - end, 0)]
    assert output[end + len(budget.closing) :] == drawn[end + len(budget.closing) :]


@given(budget=budgets, drawn=st.lists(st.sampled_from([1, 2, 5, 6, 7, 8, 9]), max_size=40))
def test_what_begins_again_is_of_the_same_budget(budget: ReasoningBudget, drawn: list[int]) -> None:
    budget = replace(budget, again=OPEN)
    output = written(budget, drawn)
    at = start_of(budget, output) or 0
    assert output[:at] == drawn[:at]
    left, inside, spent = budget.max_tokens, bool(at) or budget.begun or not budget.opening, False
    while at < len(output):
        if not inside:
            is_banned = spent and (output[at - 1], drawn[at]) == OPEN
            assert output[at] == (OTHER if is_banned else drawn[at])
            inside = at > 0 and tuple(output[at - 1 : at + 1]) == OPEN
            at += 1
        elif left and output[at] != CLOSE[0]:
            assert output[at] == drawn[at]
            left, at = left - 1, at + 1
        elif left:  # the model ends it by itself
            inside, at = False, at + 1
        else:
            end = output[at : at + len(budget.closing)]
            assert tuple(end) == budget.closing[: len(end)]
            inside, spent, at = False, True, at + len(end)


@given(
    budget=budgets,
    again=st.sampled_from([(), OPEN]),
    drawn=st.lists(st.sampled_from([1, 5, 6, 7, 8]), max_size=20),
    at=st.integers(0, 20),
)
def test_a_resumed_sequence_goes_on_alike(
    budget: ReasoningBudget, again: tuple[int, ...], drawn: list[int], at: int
) -> None:
    budget = replace(budget, again=again)
    output = written(budget, drawn)
    begun = output[:at]
    for token in drawn[len(begun) :]:
        begun.append(following(budget, begun, token))
    assert begun == output


@pytest.mark.parametrize("max_tokens", [0, 1, 10])
def test_an_engine_forces_the_end_at_every_resume(max_tokens: int) -> None:
    budget = ReasoningBudget(max_tokens, (301, 302))
    params = SamplingParams(
        temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logit_bias={301: -100.0}, reasoning_budget=budget
    )
    prompt = {"p": [11, 12, 13]}
    with started("checkpoints/tiny", max_model_len=256) as engine:
        whole = run(engine, prompt, {"p": params})["p", 0].token_ids
        assert whole[max_tokens : max_tokens + 2] == [301, 302]
        assert 301 not in [*whole[:max_tokens], *whole[max_tokens + 2 :]]
        for at in (1, max_tokens, max_tokens + 1, max_tokens + 2, 20):
            if at:
                resumed = run(engine, prompt, {"p": params}, resume={"p": {0: tuple(whole[:at])}})
                assert whole[:at] + resumed["p", 0].token_ids == whole, at


@pytest.mark.parametrize("max_tokens", [0, 1, 10])
def test_an_engine_counts_what_begins_again(max_tokens: int) -> None:
    """Until the budget is spent; from then on nothing begins again. So at every resume."""
    budget = ReasoningBudget(max_tokens, (301,), opening=(300,), again=(300,))
    bias = {300: 14.0, 301: 12.0}  # this model begins to reason again and again
    params = SamplingParams(seed=3, max_tokens=60, ignore_eos=True, logit_bias=bias, reasoning_budget=budget)
    with started("checkpoints/tiny", max_model_len=256) as engine:
        whole = run(engine, {"p": [11, 12, 13]}, {"p": params})["p", 0].token_ids
        inside, within, sections, ended = False, 0, 0, 0
        for at, token in enumerate(whole):
            if inside and token == 301:
                inside, ended = False, at
            elif inside:
                within += 1
            elif token == 300:
                inside, sections = True, sections + 1
        assert within == max_tokens
        assert sections > (max_tokens == 10)
        assert 300 not in whole[ended:]
        assert len(whole[ended:]) > 20
        resumes = {f"{at}": {0: tuple(whole[:at])} for at in range(1, len(whole))}
        prompts = {at: [11, 12, 13] for at in resumes}
        rest = run(engine, prompts, dict.fromkeys(resumes, params), resumes)
        for at in resumes:
            assert whole[: int(at)] + rest[at, 0].token_ids == whole, at


@given(drawn=st.lists(st.sampled_from([1, 2, 3, 7]), max_size=24), max_tokens=st.integers(0, 6))
def test_a_character_that_has_begun_is_ended_first(drawn: list[int], max_tokens: int) -> None:
    """Where 2 begins a character of two tokens, and 3 one of three."""

    def within(token_ids: Sequence[int]) -> bool:
        return 2 in token_ids[-1:] or 3 in token_ids[-2:]

    budget = ReasoningBudget(max_tokens, CLOSE)
    output: list[int] = []
    for token in drawn:
        inside = within(output) and token in (2, 3, 7)  # what a grammar does not admit there
        forced, _ = forced_and_banned(budget, output, within)
        output.append(forced if forced is not None else 1 if inside else token)
    if CLOSE[0] in output:
        at = output.index(CLOSE[0])
        assert at <= max_tokens + 2
        assert not within(output[:at])
        assert at <= max_tokens or within(output[:max_tokens])
    else:
        assert len(output) <= max_tokens or within(output[:max_tokens])


@pytest.mark.parametrize("max_tokens", [3, 4])
def test_a_grammar_goes_on_behind_reasoning_that_ends_within_a_character(max_tokens: int) -> None:
    first_byte, close = 130, 2558  # of é, a token of its own; and <tool_call>
    params = SamplingParams(
        temperature=0.0,
        max_tokens=12,
        logit_bias={first_byte: 100.0},
        grammar=f'start: /(?s:.*)/ <[{close}]> "done"',
        reasoning_budget=ReasoningBudget(max_tokens, (close,)),
    )
    with started("checkpoints/tiny", max_model_len=256) as engine:
        whole = run(engine, {"p": [11, 12]}, {"p": params})["p", 0]
        assert whole.token_ids.index(close) == 4
        assert whole.token_ids[0] == first_byte
        for at in (1, 3, 4, 5):
            resumed = run(engine, {"p": [11, 12]}, {"p": params}, resume={"p": {0: tuple(whole.token_ids[:at])}})
            assert whole.token_ids[:at] + resumed["p", 0].token_ids == whole.token_ids, at


@pytest.mark.parametrize("max_tokens", [3, 1000])
def test_an_answer_begins_to_reason_a_bounded_number_of_times(max_tokens: int) -> None:
    """Each step reads all reasoning; what begins and ends at once would never be spent."""
    budget = ReasoningBudget(max_tokens, CLOSE[:1], OPEN[:1], again=OPEN[:1])
    state = ReasoningBudgets(ProcessorSetup(1, 20, ()))
    state.add(0, SamplingParams(reasoning_budget=budget))
    output: list[int] = []
    for _ in range(200):
        tokens = np.array([output], np.int32)
        rows = SamplingRows(np.zeros(1, np.intp), tokens, np.array([len(output)]), np.zeros(1, int), np.zeros(1, int))
        logits = torch.zeros(1, 20)
        logits[0, OPEN[0] if len(output) % 2 == 0 else CLOSE[0]] = 1.0
        state.apply(NumpyOps(20), logits, rows, np.zeros(1, np.intp))
        output.append(int(logits.argmax()))
    assert output.count(OPEN[0]) == 64
    assert output[:128] == [OPEN[0], CLOSE[0]] * 64
