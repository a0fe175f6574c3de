"""Every field of PEFT's configuration is honoured, has no effect, or is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from peft.tuners.lora import ArrowConfig, BdLoraConfig
from peft.utils.other import get_pattern_key

from engine_core.errors import AdapterError
from engine_core.lora import peft_config
from engine_core.lora.peft_config import LayerScale, LayerScales, read_peft_config

LORA = {"peft_type": "LORA"}


def test_every_field_of_peft_has_been_thought_of() -> None:
    known = [peft_config._HONOURED, peft_config._WITHOUT_EFFECT, peft_config._REFUSED.keys()]
    fields = {each.name for each in dataclasses.fields(LoraConfig)}
    assert set().union(*known) == fields
    assert sum(map(len, known)) == len(fields), "some are in two"


def test_defaults_are_pefts(tmp_path: Path) -> None:
    LoraConfig().save_pretrained(str(tmp_path))
    assert read_peft_config(json.loads((tmp_path / "adapter_config.json").read_text())) == dataclasses.replace(
        read_peft_config(LORA), peft_version=(0, 21)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"use_dora": True},
        {"use_qalora": True},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"fan_in_fan_out": True},
        {"megatron_config": {"tensor_model_parallel_size": 2}},
        {"trainable_token_indices": [1, 2]},
        {"alora_invocation_tokens": [5, 6]},
        {"layer_replication": [[0, 4], [2, 5]]},
        {"use_bdlora": dataclasses.asdict(BdLoraConfig(nblocks=2))},
        {"arrow_config": dataclasses.asdict(ArrowConfig())},
        {"kasa_config": {"beta": 1e-4}},
        {"monteclora_config": {"num_samples": 8}},
        {"velora_config": {"num_groups": 64}},
        {"a_field_of_later": 3},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "pissa_niter_16"},
        {"init_lora_weights": "OLoRA"},
        {"init_lora_weights": "corda"},
        {"init_lora_weights": "loftq"},
        {"init_lora_weights": "lora_ga"},
        {"init_lora_weights": "a way of later"},
        {"peft_type": "IA3"},
        {"peft_type": None},
        {"r": 0},
        {"r": 8.0},
        {"r": True},
        {"r": 10**30},
        {"lora_alpha": "8"},
        {"lora_alpha": float("nan")},
        {"lora_alpha": 1e300},
        {"lora_alpha": 10**5000},
        {"use_rslora": "false"},
        {"rank_pattern": ["q_proj"]},
        {"rank_pattern": {"q_proj": -1}},
        {"alpha_pattern": {"q_proj": None}},
        {"modules_to_save": "lm_head"},
        {"target_parameters": [1]},
    ],
)
def test_what_would_change_results_is_refused_by_name(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(AdapterError, match=f"adapter_config.json: '?{name}"):
        read_peft_config(LORA | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"a_field_of_later": None},
        {"another": False},
        {"use_dora": False, "bias": "none", "megatron_config": None, "layer_replication": []},
        {
            "lora_dropout": 0.5,
            "task_type": "CAUSAL_LM",
            "inference_mode": True,
            "revision": "main",
            "eva_config": {"rho": 2},
        },
        {"target_modules": "(a*)*b", "exclude_modules": "(?!x)y", "layers_to_transform": 1, "layers_pattern": "layers"},
        *({"init_lora_weights": each} for each in (True, False, None, "gaussian", "eva", "orthogonal", "mica")),
    ],
)
def test_what_changes_no_results_is_accepted(fields: dict[str, Any]) -> None:
    assert read_peft_config(LORA | fields) == read_peft_config(LORA)


NAMES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.10.self_attn.q_proj",
    "model.layers.1.mlp.experts.gate_up_proj",
    "lm_head",
    "q_proj",
]


@pytest.mark.parametrize(
    "patterns",
    [
        ["q_proj"],
        ["proj"],
        ["self_attn.q_proj", "q_proj"],
        ["^model.layers.0.self_attn.q_proj", "^q_proj", "^layers.0.self_attn.q_proj"],
        ["layers.1.self_attn.q_proj", "layers.1..self_attn.q_proj"],
        [r".*\.gate_up_proj", "lm.head"],
        [r"layers\.\d+\.self_attn\.(q|k)_proj", "x"],
        ["lm_head)|(q_proj", "a"],
        ["", "^", "$"],
        [r"model\.layers\.(0|1[0-9])\..*"],
    ],
)
def test_ranks_and_factors_are_those_of_the_first_pattern(patterns: list[str]) -> None:
    ranks = {pattern: place + 2 for place, pattern in enumerate(patterns)}
    alphas = {pattern: place + 20 for place, pattern in enumerate(reversed(patterns))}
    scales = LayerScales(read_peft_config(LORA | {"rank_pattern": ranks, "alpha_pattern": alphas}))
    for name in NAMES:
        rank = ranks.get(get_pattern_key(list(ranks), name), 8)
        alpha = alphas.get(get_pattern_key(list(alphas), name), 8)
        assert scales.of(name) == LayerScale(rank, alpha / rank)


def test_patterns_of_other_syntax_are_refused_by_name() -> None:
    config = read_peft_config(LORA | {"rank_pattern": {"(?=q)q_proj": 4}})
    with pytest.raises(AdapterError, match=r"'\(\?=q\)q_proj' in rank_pattern has '\(\?=', which is not supported"):
        LayerScales(config)


def test_patterns_take_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peft_config, "_MOST_STEPS", 30_000)
    scales = LayerScales(read_peft_config(LORA | {"alpha_pattern": {"(a|b)*a" + "(a|b)" * 400: 1}}))
    with pytest.raises(AdapterError, match="alpha_pattern and others take more than 30000 steps"):
        _ = [scales.of("ab" * 200 + str(place)) for place in range(1_000)]


def test_keys_without_syntax_take_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peft_config, "_MOST_COMPARISONS", 1_000)
    scales = LayerScales(
        read_peft_config(LORA | {"rank_pattern": {f"layers.{place}.q_proj": 2 for place in range(100)}})
    )
    with pytest.raises(AdapterError, match="rank_pattern and others take more than 1000 steps"):
        _ = [scales.of(f"layers.{place}.k_proj") for place in range(100)]
