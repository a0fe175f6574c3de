"""The numerics fingerprint differs where results may, and only there."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_core.config import LoadConfig, ModelConfig
from engine_core.loading.checkpoint import open_checkpoint
from engine_core.worker.fingerprint import cpu_numerics, numerics_fingerprint

from ..models.tiny_models import CASES, make_model, save_model


def fingerprint(path: Path, load_format: str = "auto", **options: object) -> str:
    checkpoint = open_checkpoint(ModelConfig(model=str(path), **options), LoadConfig(load_format=load_format))
    return numerics_fingerprint(checkpoint, cpu_numerics(), "some attention", "some layers")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(CASES["llama-gqa"]), tmp_path_factory.mktemp("a"))


def test_a_copy_elsewhere_and_other_limits_are_the_same(original: Path, tmp_path: Path) -> None:
    save_model(make_model(CASES["llama-gqa"]), tmp_path)
    assert fingerprint(tmp_path, max_model_len=64, served_model_name="x") == fingerprint(original)


def test_one_layer_trained_a_little_further_differs(original: Path, tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa"])
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight += 1e-3
    save_model(model, tmp_path)
    assert fingerprint(tmp_path) != fingerprint(original)


def test_dtype_quantization_configuration_and_dummy_seed_count(original: Path, tmp_path: Path) -> None:
    config = copy.deepcopy(CASES["llama-gqa"])
    config.rms_norm_eps = 1e-3
    save_model(make_model(config), tmp_path)
    variants = [
        fingerprint(original),
        fingerprint(original, dtype="bfloat16"),
        fingerprint(original, quantization="int8"),
        fingerprint(tmp_path),
        fingerprint(original, load_format="dummy"),
        fingerprint(original, load_format="dummy", seed=1),
    ]
    assert len(set(variants)) == len(variants)


def test_what_numpy_computes_with_counts(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another of its code paths may compute another last bit of a logarithm."""
    before = fingerprint(original)
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": {"found": [*found, "ANOTHER"]}})
    assert fingerprint(original) != before
