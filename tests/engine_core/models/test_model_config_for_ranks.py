"""Sizes that ranks cannot share are refused by name, those that they can are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    GPTNeoXConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
)

from engine_core.config import LoadConfig, ModelConfig, ParallelConfig
from engine_core.errors import ConfigError
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.models.model_config import ModelShape
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import SIZES

MOE = {"moe_intermediate_size": 48, "num_experts": 3, "num_experts_per_tok": 2, "head_dim": 16}


def opened(config: PretrainedConfig, directory: Path, **parallel: Any) -> ModelShape:
    config.architectures = [type(config).__name__.replace("Text", "").replace("Config", "ForCausalLM")]
    config.save_pretrained(directory)
    model, load = ModelConfig(str(directory), dtype="float32"), LoadConfig("dummy")
    return open_checkpoint(model, load, ParallelConfig(**parallel)).config


def llama(**sizes: int) -> LlamaConfig:
    return LlamaConfig(**(SIZES | {"num_attention_heads": 8, "num_key_value_heads": 2} | sizes))


@pytest.mark.parametrize(
    ("config", "parallel", "problem"),
    [
        (llama(), {"tensor_parallel_size": 3}, "=3 is not usable: expected a divisor of num_attention_heads=8$"),
        (
            llama(num_attention_heads=12, num_key_value_heads=6, hidden_size=96),
            {"tensor_parallel_size": 4},
            "=4 is not usable: expected a divisor or a multiple of num_key_value_heads=6$",
        ),
        (
            llama(intermediate_size=100),
            {"tensor_parallel_size": 8},
            "=8 is not usable: expected at most 4, as hidden_size=64 is cut in units of 16$",
        ),
        (
            llama(hidden_size=128, intermediate_size=100),
            {"tensor_parallel_size": 8},
            "=8 is not usable: expected at most 7, as intermediate_size=100 is cut in units of 16$",
        ),
        (
            Lfm2Config(**SIZES | {"hidden_size": 48}, layer_types=["conv", "full_attention", "conv"]),
            {"tensor_parallel_size": 2},
            "=2 is not usable: expected a number of equal shares of hidden_size=48, each a multiple of 16$",
        ),
        (
            Qwen3MoeConfig(**SIZES | MOE),
            {"tensor_parallel_size": 4},
            "=4 is not usable: expected at most 3, as the inner size of experts=48 is cut in units of 16$",
        ),
        (
            llama(),
            {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            "enable_expert_parallel=True is not usable: expected no value, as this model has no experts$",
        ),
        (
            Qwen3_5TextConfig(**SIZES, linear_num_key_heads=3, linear_num_value_heads=3),
            {"tensor_parallel_size": 2},
            "=2 is not usable: expected a divisor of linear_num_value_heads=3$",
        ),
        (
            Qwen3_5TextConfig(**SIZES, linear_num_key_heads=3, linear_num_value_heads=12),
            {"tensor_parallel_size": 2},
            "=2 is not usable: expected a divisor or a multiple of linear_num_key_heads=3$",
        ),
        (
            Mamba2Config(vocab_size=199, hidden_size=66, num_heads=6, head_dim=22, n_groups=3, num_hidden_layers=3),
            {"tensor_parallel_size": 4},
            "=4 is not usable: expected a divisor of num_heads=6$",
        ),
        (
            Mamba2Config(vocab_size=199, hidden_size=66, num_heads=6, head_dim=22, n_groups=3, num_hidden_layers=3),
            {"tensor_parallel_size": 2},
            "=2 is not usable: expected a divisor or a multiple of n_groups=3$",
        ),
        (
            configuration("nemotron_h-latents-groups-biases-limits-mqa-padded"),
            {"tensor_parallel_size": 3},
            "=3 is not usable: expected at most 2, as moe_latent_size=26 is cut in units of 16$",
        ),
        (llama(), {"pipeline_parallel_size": 4}, "pipeline_parallel_size=4 is not usable: expected at most 3"),
        (
            GPTNeoXConfig(**SIZES),
            {"tensor_parallel_size": 2},
            r"tensor_parallel_size=2 is not usable: expected 1, as GPTNeoXForCausalLM runs through transformers",
        ),
        (
            GPTNeoXConfig(**SIZES),
            {"pipeline_parallel_size": 2},
            r"pipeline_parallel_size=2 is not usable: expected 1, as GPTNeoXForCausalLM runs through transformers",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(
    config: PretrainedConfig, parallel: dict[str, int], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        opened(config, tmp_path, **parallel)


def test_heads_are_divided_or_replicated(tmp_path: Path) -> None:
    for size, heads in ((1, 2), (2, 1), (4, 1)):
        config = opened(llama(), tmp_path, tensor_parallel_size=size)
        assert {spec.shape[1] for spec in config.rank_cache_specs} == {heads}
        assert {spec.shape[1] for spec in config.cache_specs} == {2}


def test_whole_experts_may_be_narrow_but_there_is_one_for_each_rank(tmp_path: Path) -> None:
    parallel = {"tensor_parallel_size": 4, "enable_expert_parallel": True}
    assert opened(Qwen3MoeConfig(**SIZES | MOE | {"num_experts": 4}), tmp_path, **parallel).tensor_parallel_size == 4
    with pytest.raises(ConfigError, match="=4 is not usable: expected at most 3, the number of experts, with --enable"):
        opened(Qwen3MoeConfig(**SIZES | MOE), tmp_path, **parallel)
