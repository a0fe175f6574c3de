"""Steps as graphs, and launched ahead: bit for bit what they are kernel by kernel, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.gpu.device import ON_CARD, WIDE
from tests.gpu.engines import LENGTH, OPTIONS, saved

pytestmark = pytest.mark.gpu
DRAWN = SamplingParams(temperature=0.9, top_p=0.8, seed=2, max_tokens=LENGTH, ignore_eos=True, logprobs=2)
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True, logprobs=2)
BATCHES = (1, 2, 3, 5, 8, 13, 16) if ON_CARD else (3,)
"""Sequences at a time; graphs are of 1, 2, 4, 8 and 16."""
Said = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen3-tied-head-dim", tmp_path_factory.mktemp("model"))


def said(model: Path, **options: object) -> Said:
    """Tokens and log probabilities of batches of every size."""
    made = []
    with LLM(str(model), **OPTIONS, **options) as llm:
        for count in BATCHES:
            prompts = [list(range(5 + place, 9 + 2 * place)) for place in range(count)]
            params = [GREEDY if place % 2 else DRAWN for place in range(count)]
            choices = [result.choices[0] for result in llm.generate(prompts, params)]
            made += [(one.token_ids, [entry.logprob for entry in one.logprobs or ()]) for one in choices]
    return made


@pytest.fixture(scope="module")
def plainly(model: Path) -> Said:
    """Kernel by kernel, one step after the other."""
    return said(model, deterministic=True, enforce_eager=True, async_scheduling=False)


def test_graphs_change_no_bit(model: Path, plainly: Said) -> None:
    assert said(model, deterministic=True, async_scheduling=False) == plainly


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=WIDE)])
def test_overlap_changes_no_token(model: Path, plainly: Said, eager: bool) -> None:
    """Where steps have other rows, sums of exponentials may be rounded otherwise: logarithms are nearly equal."""
    made = said(model, deterministic=True, enforce_eager=eager, async_scheduling=True)
    assert [ids for ids, _ in made] == [ids for ids, _ in plainly]
    for (_, logprobs), (_, expected) in zip(made, plainly, strict=True):
        assert logprobs == pytest.approx(expected, abs=1e-5)
