"""Layers that attend over another's cache: it is counted once, in memory and in plans, and read by each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Gemma4TextConfig

from engine_core.models.language_model import LanguageModel
from engine_core.models.roofline import StepCost
from engine_core.worker import dummy_batches
from engine_core.worker.input_batch import BatchLimits
from tests.engine_core.models.driver import CPU, build_model, chosen_attention, logits_of, open_at
from tests.engine_core.models.families import configuration

SHARING = "gemma4_text"
"""Six layers, of which the last three, two with a window, attend over what the second and the third keep."""
KEPT = 2 * (2 * 2 * 16) + 2 * 2 * 32
"""Numbers of a token: keys and values of two heads of 16 in two layers, and of two heads of 32 in one."""


@pytest.fixture
def model(tmp_path: Path) -> LanguageModel:
    config = configuration(SHARING)
    config.architectures = ["Gemma4ForCausalLM"]
    config.save_pretrained(tmp_path)
    return build_model(open_at(tmp_path, load_format="dummy", dtype="bfloat16"))


def test_a_cache_is_there_once_for_all_layers_that_attend_over_it(model: LanguageModel) -> None:
    assert model.config.cache_owners == (0, 1, 2, 1, 1, 2)
    assert model.cache_of_layers == (0, 1, 2, 1, 1, 2)
    assert [(group.layers, group.sliding_window) for group in model.kv_cache_groups] == [
        ((0,), 24),
        ((1,), 24),
        ((2,), None),
    ]
    assert len(model.kv_cache_spec(16).layers) == 3


def test_it_is_kept_once_and_read_by_each(model: LanguageModel) -> None:
    cost = StepCost.of_model(model)
    assert cost.kv_bytes == 2 * KEPT
    assert cost.kv_read == 2 * 2 * KEPT
    assert cost.step(1, 0, 0, 10).read - cost.step(1, 0, 0, 0).read == 10 * cost.kv_read


def test_a_model_with_some_layers_has_the_caches_that_they_need(model: LanguageModel) -> None:
    """A window alone is a kind, a layer with a cache is another than one without, and owners are there for others."""
    assert model.layers_by_kind() == [[0, 1], [2], [3, 4], [5]]
    cut = model.one_layer_of_each_kind()
    assert cut.cache_of_layers == (0, 1, 2, 1, 2)  # the first two kinds' layers, and one that the third needs
    alone = model.with_layers([4])
    assert alone.cache_of_layers == (0,)
    assert logits_of(cut, torch.arange(40)).isfinite().all()


def test_attention_is_timed_for_each_layer(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each pair of a row and a token that it sees."""
    monkeypatch.setattr(dummy_batches, "_seconds_per_pair", lambda *args: 1.0)
    limits = BatchLimits(4, 32, 512, 16)
    seconds = dummy_batches.attention_seconds(
        chosen_attention(), model.kv_cache_spec(16), model.cache_of_layers, 4, limits, CPU
    )
    assert seconds == limits.max_rows * (4 * 24 + 2 * 512)


def test_keys_of_layers_without_a_cache_may_be_there_in_vain(model: LanguageModel) -> None:
    assert model.is_redundant("model.layers.3.self_attn.k_proj.weight")
    assert model.is_redundant("model.layers.5.self_attn.v_norm.weight")
    assert not model.is_redundant("model.layers.2.self_attn.k_proj.weight")
    assert not model.is_redundant("model.layers.3.self_attn.q_proj.weight")
    assert not model.is_redundant("model.layers.6.self_attn.k_proj.weight")


def test_a_tensor_that_is_loaded_twice_counts_twice(tmp_path: Path) -> None:
    """Keys' projections that make values, too."""
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    config = Gemma4TextConfig(
        **sizes,
        global_head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_global_key_value_heads=4,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        layer_types=["full_attention"],
        architectures=["Gemma4ForCausalLM"],
    )
    config.save_pretrained(tmp_path)
    model = build_model(open_at(tmp_path, load_format="dummy", dtype="bfloat16"))
    parameters = sum(part.num_weights for part in model.parts)
    assert parameters == 64 * 64 + 3 * 64 * 64 + 3 * 64 * 64 + 5 * 64 + 1 + 2 * 16  # embedding; q, k, o; block; norms
    assert model.expected_weight_bytes == 2 * (parameters + 64 * 64)
