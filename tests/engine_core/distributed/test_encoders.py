"""Ranks that share an encoder's layers, or have some of them, compute the bits of one process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from engine_core.errors import ConfigError
from engine_core.models.language_model import LanguageModel
from tests.engine_core.distributed.ranks import assert_bits, on_ranks
from tests.engine_core.models.driver import build_model, open_at
from tests.engine_core.models.encoders import CASES, FALLBACK, hidden_states, inputs_of, make
from tests.engine_core.models.stages import Pipeline, load_stages

QUICK = ("bert", "gemma3-encoder", "modernbert")
"""The others take long."""
NAMES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.distributed) for name in CASES if name not in FALLBACK
]
INPUTS = inputs_of((70, 1, 33, 150))
TYPES = [(torch.arange(len(each)) > len(each) // 2).long() for each in INPUTS]


def run(model: LanguageModel | Pipeline) -> list[torch.Tensor]:
    return hidden_states(model, INPUTS, TYPES)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_of_a_layer(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    checkpoint = open_at(tmp_path, dtype="float32")
    expected = run(build_model(checkpoint))
    compared = 0
    for size in (2, 3, 4):
        with suppress(ConfigError):  # it has not enough heads, or does not divide them
            for found in on_ranks(checkpoint, size, run):
                assert_bits(found, expected)
                compared += 1
    assert compared


@pytest.mark.parametrize("name", NAMES)
def test_stages(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    checkpoint = open_at(tmp_path, dtype="float32")
    expected = run(build_model(checkpoint))
    for count in (2, 3):
        assert_bits(run(Pipeline(load_stages(checkpoint, count))), expected)
