"""Ranks that share layers compute the bits of one process: every family, cut in every way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PretrainedConfig

from engine_core.errors import ConfigError
from engine_core.models.language_model import LanguageModel
from tests.engine_core.distributed.ranks import assert_bits, on_ranks
from tests.engine_core.models.driver import Driver, build_model, open_at
from tests.engine_core.models.families import OWN
from tests.engine_core.models.test_bitwise_stability import CONFIGS, KINDS
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

ALL: dict[str, PretrainedConfig] = OWN | CONFIGS | KINDS
LENGTHS = (70, 1, 33)


def run_steps(model: LanguageModel) -> list[torch.Tensor]:
    """Prompts of three sequences in chunks, then some decoding, all mixed: logits of every row, and tokens."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(model.vocab_size, (length,), generator=generator) for length in LENGTHS]
    driver, found = Driver(model, [length + 4 for length in LENGTHS]), []

    def step(work: list[tuple[int, torch.Tensor]]) -> None:
        found.extend(each.clone() for each in driver.step(work))

    step([(0, prompts[0][:50]), (1, prompts[1])])
    step([(0, prompts[0][50:]), (2, prompts[2])])
    for token in range(3, 6):
        step([(sequence, torch.tensor([token + sequence])) for sequence in range(3)])
    return found


QUICK = {(name, "bfloat16") for name in [*CONFIGS, *KINDS]} | {("latents", "float32"), ("experts", "int8")}
"""The others take minutes."""
ALL_CASES = [
    pytest.param(name, dtype, marks=[] if (name, dtype) in QUICK else pytest.mark.distributed)
    for name in ALL
    for dtype in ("float32", "bfloat16", "int8")
]


@pytest.mark.parametrize(("name", "dtype"), ALL_CASES)
def test_logits_have_the_bits_of_one_process(name: str, dtype: str, tmp_path: Path) -> None:
    config = ALL[name]
    quantized = {"quantization": "int8", "dtype": "bfloat16"} if dtype == "int8" else {"dtype": dtype}
    checkpoint = open_at(save_model(make_model(config), tmp_path), **quantized)
    expected = run_steps(build_model(checkpoint))
    for size in (2, 3, 4):
        with suppress(ConfigError):  # it has not enough heads, or does not divide them
            found = on_ranks(checkpoint, size, run_steps)[0]
            for number, (one, other) in enumerate(zip(expected, found, strict=True)):
                assert torch.equal(one.view(torch.int32), other.view(torch.int32)), (name, size, number)


@pytest.mark.parametrize("name", ["experts", "latents", "sinks", "shared-caches"])
def test_whole_experts_on_each_rank_have_the_same_bits(name: str, tmp_path: Path) -> None:
    checkpoint = open_at(save_model(make_model(KINDS[name]), tmp_path), dtype="bfloat16")
    expected = run_steps(build_model(checkpoint))
    assert_bits(on_ranks(checkpoint, 2, run_steps, expert_parallel=True)[0], expected)


def test_a_zero_of_an_embedding_keeps_its_sign(tmp_path: Path) -> None:
    """A sum over ranks, of which all but one put in zeros, would make it positive."""
    made = make_model(CASES["llama-gqa"])
    with torch.no_grad():
        made.model.embed_tokens.weight.fill_(-0.0)
    checkpoint = open_at(save_model(made, tmp_path), dtype="float32")
    tokens = torch.tensor([0, 150, 198, 95, 96])
    for embedded in on_ranks(checkpoint, 2, lambda model: model.embed(tokens, tokens).clone()):  # type: ignore[attr-defined]
        assert torch.signbit(embedded).all()
        assert not embedded.any()


@pytest.mark.parametrize(
    ("nans", "expected"), [((), 0), ((150, 190), 150), ((190, 20), 20), ((95,), 95), ((96,), 96), ((198,), 198)]
)
def test_the_greatest_logit_is_the_first_nan_or_the_first_of_equals(
    nans: tuple[int, ...], expected: int, tmp_path: Path
) -> None:
    """Two ranks have the tokens below 96, and the others."""
    made = make_model(CASES["llama-gqa"])
    with torch.no_grad():
        made.lm_head.weight.fill_(0.5)
        made.lm_head.weight[list(nans)] = torch.nan
    checkpoint, hidden = open_at(save_model(made, tmp_path), dtype="float32"), torch.ones(3, 64)
    for quantization in (None, "int8"):
        stored = replace(checkpoint, quantization=quantization)
        assert build_model(stored).greatest(hidden).ids.tolist() == [expected] * 3
        for found in on_ranks(stored, 2, lambda model: model.greatest(hidden).ids.tolist()):
            assert found == [expected] * 3
