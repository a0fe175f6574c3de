"""LongRoPE on both sides of its switch, which is an engine's ``max_model_len`` here, not the length of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Phi3Config, PreTrainedModel

from engine_core.request import SamplingParams
from tests.engine_core.engines import run, started
from tests.engine_core.models.greedy import assert_greedy
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model

ORIGINAL = 64
SHORT = [1.0, 1.05, 1.1, 1.3, 1.5, 2.0]
LONG = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def phi3(short_factor: list[float]) -> PreTrainedModel:
    """Of 512 positions; transformers switches to the other factors where a sequence is longer than 64."""
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": short_factor, "long_factor": LONG}
    return make_model(
        Phi3Config(**SIZES, original_max_position_embeddings=ORIGINAL, partial_rotary_factor=0.75, rope_parameters=rope)
    )


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return phi3(SHORT)


@pytest.fixture(scope="module")
def directory(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(model, tmp_path_factory.mktemp("phi3"))


def continued(directory: Path, length: int, count: int, max_model_len: int | None) -> tuple[list[int], list[int]]:
    """A prompt, and what an engine continues it with, computed by up to 24 tokens a step."""
    prompt = [(31 * place) % 196 + 3 for place in range(length)]
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    with started(directory, max_model_len=max_model_len, max_num_batched_tokens=24) as engine:
        return prompt, run(engine, {"one": prompt}, {"one": params})["one", 0].token_ids


@pytest.mark.parametrize("length", [1, 33, 63])
def test_up_to_the_original_length(length: int, model: PreTrainedModel, directory: Path) -> None:
    assert_greedy(model, *continued(directory, length, ORIGINAL - length, ORIGINAL))


@pytest.mark.parametrize("max_model_len", [None, 130])
@pytest.mark.parametrize("length", [64, 90])
def test_beyond_it(length: int, max_model_len: int | None, model: PreTrainedModel, directory: Path) -> None:
    assert_greedy(model, *continued(directory, length, 40, max_model_len))


def test_a_short_sequence_where_longer_ones_are_allowed(model: PreTrainedModel, directory: Path) -> None:
    prompt, tokens = continued(directory, 30, 30, ORIGINAL + 1)
    assert_greedy(phi3(LONG), prompt, tokens)
    with pytest.raises(AssertionError, match="other tokens"):
        assert_greedy(model, prompt, tokens)
