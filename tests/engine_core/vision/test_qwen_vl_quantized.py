"""Quantized checkpoints of the Qwen family: a tower is read as the files have it, whatever the configuration says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine_core.quantization.quantizing import Quantizer, compressed
from tests.engine_core.vision.test_qwen_vl import assert_near, load, make, picture_of, save

INT8 = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
FP8 = compressed("float-quantized", num_bits=8, type="float", symmetric=True, strategy="channel")


def quantize(directory: Path, quantizer: Quantizer, *, with_tower: bool) -> dict[str, torch.Tensor]:
    """Quantize a checkpoint's layers; returns the weights that the tower's then stand for, by the file's names."""
    stored: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        layer, is_linear = name.removesuffix(".weight"), tensor.ndim == 2 and "embed" not in name
        if is_linear and (".layers." in name or (with_tower and ".visual." in name)):
            parts, meant[name] = quantizer.quantize(layer, tensor)
            stored |= {each: part.contiguous().clone() for each, part in parts.items()}
        else:
            stored[name] = tensor
    save_file(stored, directory / "model.safetensors")
    fields = json.loads((directory / "config.json").read_text())
    config = quantizer.fields | {"ignore": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(fields | {"quantization_config": config}))
    return {name: tensor for name, tensor in meant.items() if ".visual." in name}


@pytest.mark.parametrize(
    ("quantizer", "with_tower"),
    [
        pytest.param(INT8, True, id="int8 tower"),
        pytest.param(FP8, False, id="fp8"),
        pytest.param(INT8, False, id="int8", marks=pytest.mark.models),
        pytest.param(FP8, True, id="fp8 tower", marks=pytest.mark.models),
    ],
)
def test_a_tower_is_quantized_if_its_tensors_are(quantizer: Quantizer, with_tower: bool, tmp_path: Path) -> None:
    whole: Any = make("qwen3_vl")
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    for directory in (quantized, plain):
        directory.mkdir()
        save(whole, directory)
    meant = quantize(quantized, quantizer, with_tower=with_tower)
    assert bool(meant) == with_tower
    whole.load_state_dict(meant, strict=False)
    save(whole, plain)
    found, expected = (load(directory).encode(picture_of(3, 4)) for directory in (quantized, plain))
    assert_near(found.embeddings, expected.embeddings)
    if not with_tower:
        assert torch.equal(found.embeddings, expected.embeddings)


def test_quantization_while_loading_leaves_the_tower_as_it_is(tmp_path: Path) -> None:
    directory = save(make("qwen3_vl"), tmp_path)
    found, expected = (load(directory, quantization=each).encode(picture_of(3, 4)) for each in ("int8", None))
    assert torch.equal(found.embeddings, expected.embeddings)
