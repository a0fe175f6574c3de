"""Every family in short: a shape of it through an engine. All of its shapes, and longer: `make test-models`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_core.request import SamplingParams
from tests.engine_core.engines import run, started
from tests.engine_core.models.families import FIRST, configuration
from tests.engine_core.models.greedy import assert_greedy
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

PROMPTS = {f"{length}": [(7 * length + 31 * place) % 196 + 3 for place in range(length)] for length in (1, 19, 45)}
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


@pytest.mark.parametrize("name", [name for name in FIRST.values() if name not in CASES])
def test_greedy_tokens_of_prompts_in_chunks(name: str, tmp_path: Path) -> None:
    model = make_model(configuration(name), seed=2)
    with started(save_model(model, tmp_path), max_num_batched_tokens=16) as engine:
        outcomes = run(engine, PROMPTS, dict.fromkeys(PROMPTS, PARAMS))
    for prompt, ids in PROMPTS.items():
        assert_greedy(model, ids, outcomes[prompt, 0].token_ids)
