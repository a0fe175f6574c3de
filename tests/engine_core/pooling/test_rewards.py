"""Reward models, whose publishers give code of their own: transformers' decoder below layers of torch.nn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, Qwen2Config

from engine_core.errors import UnsupportedModelError
from engine_core.pooling.params import PoolingParams, PoolingTask
from tests.engine_core.engines import started
from tests.engine_core.models.driver import open_at
from tests.engine_core.models.tiny_models import SIZES

from .checkpoints import hidden_states, pooled, random_model, texts

INPUTS = texts([1, 40, 200])


def saved(directory: Path, architecture: str, labels: int, **fields: Any) -> tuple[PreTrainedModel, torch.nn.Module]:
    """A decoder and its head, saved as one model."""
    model = random_model(directory, "Qwen2Model", Qwen2Config(**SIZES))
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, labels))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(tensors | {f"score.{name}": each for name, each in head.state_dict().items()}, directory / _WEIGHTS)
    config = json.loads((directory / "config.json").read_text())
    config = {name: value for name, value in config.items() if name not in ("id2label", "label2id", "num_labels")}
    (directory / "config.json").write_text(json.dumps(config | {"architectures": [architecture], **fields}))
    return model, head


_WEIGHTS = "model.safetensors"


@torch.no_grad()
def test_a_reward_is_the_last_tokens_number(tmp_path: Path) -> None:
    """As it is, without a sigmoid; and of each token, where that is asked for."""
    model, head = saved(tmp_path, "Qwen2ForRewardModel", 1)
    with started(tmp_path, max_num_batched_tokens=48) as engine:
        found, of_tokens = (
            pooled(engine, INPUTS, PoolingParams(task)) for task in (PoolingTask.CLASSIFY, PoolingTask.TOKEN_CLASSIFY)
        )
    for each, values, rows in zip(INPUTS, found, of_tokens, strict=True):
        expected = head(hidden_states(model, each)).numpy()
        np.testing.assert_allclose(rows, expected, atol=2e-5)
        np.testing.assert_array_equal(values, rows[-1:])


@torch.no_grad()
def test_rewards_of_steps_are_shares(tmp_path: Path) -> None:
    model, head = saved(tmp_path, "Qwen2ForProcessRewardModel", 2)
    with started(tmp_path) as engine:
        found = pooled(engine, INPUTS, PoolingParams(PoolingTask.TOKEN_CLASSIFY))
    for each, values in zip(INPUTS, found, strict=True):
        np.testing.assert_allclose(values, head(hidden_states(model, each)).softmax(-1).numpy(), atol=2e-6)


def test_a_reward_model_of_another_family_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "InternLM2ForRewardModel", 1, model_type="internlm2")
    with pytest.raises(UnsupportedModelError, match="InternLM2"):
        open_at(tmp_path)
