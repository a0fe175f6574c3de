"""The end of reasoning is forced after exactly so many tokens, whatever is sampled, and wherever a sequence goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.request import ReasoningBudget, SamplingParams
from engine_core.sampling.reasoning_budget import forced_token
from tests.engine_core.engines import run, started

CLOSE, OPEN = (7, 8, 9), (5, 6)
budgets = st.builds(
    ReasoningBudget, st.integers(0, 6), st.sampled_from([CLOSE, CLOSE[:1]]), st.sampled_from([(), OPEN])
)


def written(budget: ReasoningBudget, drawn: list[int]) -> list[int]:
    """The output, where ``drawn`` is what the model would choose."""
    output: list[int] = []
    for token in drawn:
        forced = forced_token(budget, output)
        output.append(token if forced is None else forced)
    return output


@given(budget=budgets, drawn=st.lists(st.sampled_from([1, 2, 5, 6, 7, 8, 9]), max_size=24))
def test_reasoning_is_no_longer_than_its_budget(budget: ReasoningBudget, drawn: list[int]) -> None:
    output = written(budget, drawn)
    openings = [at for at in range(5) if tuple(output[at : at + len(OPEN)]) == OPEN]
    if budget.opening and not openings:
        assert output == drawn
        return
    start = openings[0] + len(OPEN) if budget.opening else 0
    reasoning = output[start : start + budget.max_tokens]
    assert output[:start] == drawn[:start]
    if budget.closing[0] in reasoning:
        assert output == drawn, "the model ended it by itself"
        return
    end = start + budget.max_tokens
    assert tuple(output[end : end + len(budget.closing)]) == budget.closing[: max(len(output) - end, 0)]
    assert output[end + len(budget.closing) :] == drawn[end + len(budget.closing) :]


@given(budget=budgets, drawn=st.lists(st.sampled_from([1, 5, 6, 7, 8]), max_size=20), at=st.integers(0, 20))
def test_a_resumed_sequence_goes_on_alike(budget: ReasoningBudget, drawn: list[int], at: int) -> None:
    output = written(budget, drawn)
    begun = output[:at]
    for token in drawn[len(begun) :]:
        forced = forced_token(budget, begun)
        begun.append(token if forced is None else forced)
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
