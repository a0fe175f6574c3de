"""A thousand greedy tokens of every family in all its shapes, far beyond windows and original lengths of rotations."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from engine_core.request import SamplingParams
from tests.engine_core.engines import run, started
from tests.engine_core.models.families import SHAPES, configuration
from tests.engine_core.models.greedy import assert_greedy
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

TOKENS = 1000
PROMPT = list(range(60, 81))


@pytest.mark.models
@pytest.mark.parametrize("name", [*CASES, *SHAPES])
def test_a_thousand_tokens(name: str, tmp_path: Path) -> None:
    config = deepcopy(configuration(name))
    config.max_position_embeddings = len(PROMPT) + TOKENS
    model = make_model(config, seed=5)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with started(save_model(model, tmp_path)) as engine:
        tokens = run(engine, {"one": PROMPT}, {"one": params})["one", 0].token_ids
    assert len(tokens) == TOKENS
    assert_greedy(model, PROMPT, tokens)
