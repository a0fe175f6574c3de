"""What checkpoints have and models leave out: layers that predict further tokens, and empty tensors."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_core.errors import CheckpointError
from tests.engine_core.models.driver import load, logits_of
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

MIXED = ["eh_proj.weight", "enorm.weight", "mlp.experts.0.up_proj.weight", "shared_head.head.weight"]


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", "glm4_moe_lite"])
def test_they_are_skipped_by_name(name: str, tmp_path: Path) -> None:
    config = configuration(name)
    save_model(make_model(config), tmp_path)
    ids = torch.arange(3, 40)
    expected = logits_of(load(tmp_path), ids)
    file = tmp_path / "model.safetensors"
    tensors, count = load_file(file), config.num_hidden_layers
    behind = {f"model.layers.{layer}.{tensor}": torch.ones(8) for layer in (count, count + 1) for tensor in MIXED}
    save_file(tensors | behind, file)
    assert torch.equal(logits_of(load(tmp_path), ids), expected)
    within = f"model.layers.{count - 1}.{MIXED[0]}"
    save_file(tensors | {within: torch.ones(8)}, file)
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({within}\)"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["deepseek_v2-no-query-latent", "deepseek_v3", "glm4_moe"])
def test_shared_experts_that_a_model_does_not_have_are_empty(name: str, tmp_path: Path) -> None:
    config = deepcopy(configuration(name))
    config.n_shared_experts = 0
    save_model(make_model(config), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors, shared = load_file(file), f"model.layers.{config.num_hidden_layers - 1}.mlp.shared_experts.up_proj.weight"
    save_file(tensors | {shared: torch.ones(0, config.hidden_size)}, file)
    load(tmp_path)
    save_file(tensors | {shared: torch.ones(8, config.hidden_size)}, file)
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({shared}\)"):
        load(tmp_path)
