"""Layers that keep unlike numbers of a token (a made-up family), or attend over another's cache (Gemma 4), through
everything that an engine does with a cache.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig as PretrainedLlamaConfig

from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec
from engine_core.llm import LLM
from engine_core.models import registry
from engine_core.models.llama import LlamaForCausalLM
from engine_core.models.model_config import ArchitectureConfig
from engine_core.ops.torch import TorchBackend
from engine_core.request import SamplingParams
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.self_test import is_bitwise_stable

from .driver import CPU, Driver, build_model, chosen_attention, logits_of, open_at
from .families import configuration
from .tiny_models import SIZES

WINDOW = 24
SHAPES = [(2, 32), (1, 64), (2, 32), (2, 32), (1, 64)]
"""Key/value heads and head size of each layer: those with two heads have a window."""


class UnlikeConfig(ArchitectureConfig):
    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        return tuple(AttentionSpec(*shape) for shape in SHAPES)


class Unlike(LlamaForCausalLM):
    @classmethod
    def read_config(cls, config: PretrainedLlamaConfig) -> UnlikeConfig:
        read = LlamaForCausalLM.read_config(config)
        fields = {name: getattr(read, name) for name in ArchitectureConfig.__dataclass_fields__}
        windows = tuple(WINDOW if heads == 2 else None for heads, _ in SHAPES)
        ropes = tuple(
            rope and replace(rope, rotary_dim=width) for rope, (_, width) in zip(read.ropes, SHAPES, strict=True)
        )
        return UnlikeConfig(**(fields | {"sliding_windows": windows, "ropes": ropes}))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(registry.ARCHITECTURES, "LlamaForCausalLM", Unlike)
    config = PretrainedLlamaConfig(**(SIZES | {"num_hidden_layers": len(SHAPES)}), architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(params=["unlike", "shared"])
def either(request: pytest.FixtureRequest, directory: Path) -> Path:
    if request.param == "shared":
        config = configuration("gemma4_text")
        config.architectures = ["Gemma4ForCausalLM"]
        config.save_pretrained(directory)
    return directory


def test_native_layers_agree_with_torch_and_with_themselves_in_other_steps(directory: Path) -> None:
    checkpoint = open_at(directory, load_format="dummy", dtype="float32")
    native, plain = build_model(checkpoint), build_model(checkpoint, TorchBackend())
    assert [group.layers for group in native.kv_cache_groups] == [(0, 2), (3,), (1, 4)]
    ids = torch.randint(0, native.vocab_size, (90,), generator=torch.Generator().manual_seed(2))
    whole = logits_of(native, ids)
    torch.testing.assert_close(whole, logits_of(plain, ids), atol=1e-5, rtol=1e-4)
    rng, driver = random.Random(3), Driver(native, [90, 90], seed=4)
    parts: list[list[torch.Tensor]] = [[], []]
    while work := [
        (s, ids[driver.computed[s] :][: rng.choice([1, 7, 40])]) for s in (0, 1) if driver.computed[s] < len(ids)
    ]:
        for (s, _), logits in zip(work, driver.step(work), strict=True):
            parts[s].append(logits)
    for logits in parts:
        assert torch.equal(torch.cat(logits), whole)


def test_the_self_test_passes(either: Path) -> None:
    checkpoint = open_at(either, load_format="dummy")
    model, limits = build_model(checkpoint), BatchLimits(1, 1, checkpoint.spec.max_model_len, 16)
    assert is_bitwise_stable(model.one_layer_of_each_kind(), chosen_attention(), limits, CPU)


def test_an_engine_answers_alike_with_and_without_room(either: Path) -> None:
    """With a cache whose size a profile finds, and with one so small that requests wait and prefixes are dropped."""
    options = {"load_format": "dummy", "dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 64}
    prompts = [list(range(first, first + 60)) for first in (3, 50, 3, 90, 50)]
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    answers = []
    for kv_cache_memory_bytes in (None, 30 << 14):
        with LLM(str(either), kv_cache_memory_bytes=kv_cache_memory_bytes, **options) as llm:
            answers.append([result.choices[0].token_ids for result in llm.generate(prompts, params)])
    assert answers[0] == answers[1]
    assert len(set(map(tuple, answers[0]))) > 1
