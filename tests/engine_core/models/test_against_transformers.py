"""Every family and switch computes what transformers computes from the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine_core.ops.base import OpsBackend
from engine_core.ops.torch import TorchBackend
from tests.engine_core.models.driver import Driver, load, logits_of
from tests.engine_core.models.families import ALL, configuration
from tests.engine_core.models.families.mamba import limits_steps
from tests.engine_core.models.routing import force_routing, forced_routing, recorded_routing
from tests.engine_core.models.tiny_models import EAGER, make_model, save_model

LENGTH = 150
"""Longer than a tile of keys, and than the original length of the llama3 and yarn cases."""


@pytest.fixture(params=["chosen", "torch"])
def layers(request: pytest.FixtureRequest) -> OpsBackend | None:
    return TorchBackend() if request.param == "torch" else None


@pytest.fixture(scope="module", params=ALL)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    model = make_model(configuration(request.param))
    return model, save_model(model, tmp_path_factory.mktemp("checkpoint"))


def random_ids(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 199, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def reference_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    return model(ids[None]).logits[0].float()


def test_logits_in_float32(pair: tuple[PreTrainedModel, Path], layers: OpsBackend | None) -> None:
    reference, directory = pair
    ids = random_ids(LENGTH)
    expected = reference_logits(reference, ids)
    actual = logits_of(load(directory, layers=layers), ids, chunks=[70, 1, 1, 78])
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "qwen2-yarn",
        "llama3-rope",
        *(
            pytest.param(name, marks=pytest.mark.models)
            for name in (
                "deepseek_v3-halves-tied",
                "glm4-mqa-tied-padded",
                "gpt_oss",
                "ministral3",
                "olmo3",
                "phi3-short-factors-mqa-tied-padded",
            )
        ),
    ],
)
def test_an_original_length_beside_the_parameters_of_rotations(name: str, tmp_path: Path) -> None:
    """Which of two lengths counts: that beside the parameters, but not where types of layers have their own."""
    save_model(make_model(configuration(name)), tmp_path)
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text("utf-8"))
    assert "original_max_position_embeddings" in json.dumps(saved["rope_parameters"])
    path.write_text(json.dumps(saved | {"original_max_position_embeddings": 77}), "utf-8")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, **EAGER)
    ids = random_ids(LENGTH)
    actual = logits_of(load(tmp_path), ids)
    torch.testing.assert_close(actual, reference_logits(reference, ids), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kinds", [["full_attention", "sliding_attention", "full_attention"], None])
def test_a_mistral_with_types_of_layers_is_a_ministral(kinds: list[str] | None, tmp_path: Path) -> None:
    save_model(make_model(configuration("mistral-window")), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"layer_types": kinds}), "utf-8")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, **EAGER)
    own = load(tmp_path)
    assert own.config.sliding_windows == ((None, 24, None) if kinds else (24, 24, 24))
    ids = random_ids(LENGTH)
    torch.testing.assert_close(logits_of(own, ids), reference_logits(reference, ids), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", ["torch"], indirect=True)  # the others: test_transformers_parity.py
def test_greedy_tokens_in_a_mixed_batch(pair: tuple[PreTrainedModel, Path], layers: OpsBackend | None) -> None:
    reference, directory = pair
    prompts = [random_ids(length, seed=length) for length in (5, 40, 1)]
    count = 24
    driver = Driver(load(directory, layers=layers), [len(prompt) + count for prompt in prompts])
    tokens: list[list[int]] = [[] for _ in prompts]
    waiting = dict(enumerate(prompts))
    while waiting:
        # One sequence joins at each step, so that prompts and single tokens share steps.
        work = list(waiting.items())[: 1 + max(len(drawn) for drawn in tokens)]
        for (sequence, _), logits in zip(work, driver.step(work), strict=True):
            tokens[sequence].append(int(logits[-1].argmax()))
            waiting[sequence] = torch.tensor(tokens[sequence][-1:])
            if len(tokens[sequence]) == count:
                del waiting[sequence]
    for prompt, drawn in zip(prompts, tokens, strict=True):
        expected = reference.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False,
            max_new_tokens=count, eos_token_id=None, use_cache=not limits_steps(reference.config),
        )  # fmt: skip
        assert drawn == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_error_is_no_larger_than_transformers(
    pair: tuple[PreTrainedModel, Path], dtype: str, layers: OpsBackend | None
) -> None:
    """Where there are experts, all take those that the reference chooses: rounding may change a close choice."""
    reference, directory = pair
    ids = random_ids(LENGTH)
    with recorded_routing(reference) as routing:
        expected = reference_logits(reference, ids)
    rounded = type(reference).from_pretrained(directory, dtype=getattr(torch, dtype), **EAGER)
    with forced_routing(rounded, routing):
        their_error = (reference_logits(rounded, ids) - expected).square().mean().sqrt()
    own = load(directory, dtype, layers=layers)
    force_routing(own, routing)
    our_error = (logits_of(own, ids) - expected).square().mean().sqrt()
    assert 0 < our_error <= 1.2 * their_error
