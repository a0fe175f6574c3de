"""Ranks that share layers compute the bits of one process: every family, cut in every way."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from transformers import PretrainedConfig

from engine_core.errors import ConfigError
from engine_core.models.language_model import LanguageModel
from tests.engine_core.distributed.ranks import on_ranks
from tests.engine_core.models.driver import Driver, build_model, open_at
from tests.engine_core.models.families import OWN
from tests.engine_core.models.test_bitwise_stability import CONFIGS, KINDS
from tests.engine_core.models.tiny_models import make_model, save_model

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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ALL)
def test_logits_have_the_bits_of_one_process(name: str, dtype: str, tmp_path: Path) -> None:
    config = ALL[name]
    quantized = {"quantization": "int8", "dtype": "bfloat16"} if dtype == "int8" else {"dtype": dtype}
    checkpoint = open_at(save_model(make_model(config), tmp_path), **quantized)
    expected = run_steps(build_model(checkpoint))
    sizes = [size for size in (2, 3, 4) if config.num_attention_heads % size == 0]
    for size in sizes:
        with suppress(ConfigError):  # it has not enough key/value heads
            found = on_ranks(checkpoint, size, run_steps)[0]
            for number, (one, other) in enumerate(zip(expected, found, strict=True)):
                assert torch.equal(one.view(torch.int32), other.view(torch.int32)), (name, size, number)
