"""The model's digest: equal for copies, however they are stored; different for models that differ in any byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine_core.config import LoadConfig, ModelConfig
from engine_core.model_loader import digest
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.model_loader.digest import WeightsDigest

from ..models.driver import build_model
from ..models.tiny_models import CASES, make_model, save_model

FILE = "model.safetensors"


def digest_at(directory: Path, load_format: str = "auto", **options: object) -> str:
    """What an engine would say that loads the checkpoint."""
    opened = open_checkpoint(ModelConfig(model=str(directory), **options), LoadConfig(load_format=load_format))
    weights = WeightsDigest()
    build_model(opened, digest=weights)
    return opened.digest(weights)


def test_copies_are_equal_however_they_are_stored(checkpoint: Path, tmp_path: Path) -> None:
    sharded = save_model(make_model(CASES["llama-gqa"]), tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert digest_at(checkpoint) == digest_at(sharded, served_model_name="another name", dtype="bfloat16")


def test_one_byte_anywhere_makes_another_model(checkpoint: Path, tmp_path: Path) -> None:
    """Of the first and the last byte of every tensor, and one between, each in turn."""
    size = (checkpoint / FILE).stat().st_size
    data_start = 8 + int.from_bytes((checkpoint / FILE).read_bytes()[:8], "little")
    offsets = [entry["data_offsets"] for name, entry in header(checkpoint / FILE).items() if name != "__metadata__"]
    places = [data_start + place for start, end in offsets for place in (start, (start + end) // 2, end - 1)]
    assert len(offsets) > 20
    assert max(places) == size - 1
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    expected = digest_of_weights(checkpoint)
    for place in places:
        flip(tmp_path / FILE, place)
        assert digest_of_weights(tmp_path) != expected, place
        flip(tmp_path / FILE, place)
    assert digest_of_weights(tmp_path) == expected


def test_equal_bytes_in_another_place_are_another_model() -> None:
    def of(**tensors: torch.Tensor) -> str:
        weights = WeightsDigest()
        for name, tensor in tensors.items():
            add(weights, name, tensor)
        return weights.hexdigest()

    one, two = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    variants = [of(a=one, b=two), of(a=two, b=one), of(a=one.reshape(3, 2), b=two), of(a=one), of(ab=one)]
    variants += [of(a=one.view(torch.int32), b=two), of(a=one, b=two.bfloat16())]
    assert len(set(variants)) == len(variants)
    assert of(b=two, a=one) == variants[0]
    assert of(empty=torch.empty(0, 3), scalar=torch.tensor(1.0)) != of(empty=torch.empty(0, 3))


def test_a_tensor_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_BLOCK_BYTES", 100)
    seen = set()
    for changed in range(-1, 50):
        tensor = torch.zeros(10, 5, dtype=torch.uint8).repeat(1, 5)
        if changed >= 0:
            tensor.view(-1)[5 * changed] = 1
        weights = WeightsDigest()
        add(weights, "a", tensor)
        seen.add(weights.hexdigest())
    assert len(seen) == 51


def test_configuration_limits_quantization_and_seed_count(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    variants = [
        digest_at(checkpoint),
        digest_at(tmp_path),
        digest_at(checkpoint, max_model_len=64),
        digest_at(checkpoint, quantization="int8"),
        digest_at(checkpoint, quantization="int4"),
        digest_at(checkpoint, quantization="int4", quantization_group_size=64),
        digest_at(checkpoint, load_format="dummy"),
        digest_at(checkpoint, load_format="dummy", seed=1),
    ]
    (tmp_path / "config.json").write_text(json.dumps(config, indent=7))
    assert len(set(variants)) == len(variants)
    assert digest_at(tmp_path) == variants[0]
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": 2}))
    sampled = digest_at(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": [2, 3]}))
    assert len({*variants, sampled, digest_at(tmp_path)}) == len(variants) + 2


def add(weights: WeightsDigest, name: str, tensor: torch.Tensor) -> None:
    weights.add(name, tensor.dtype, tuple(tensor.shape), 0, tensor.reshape(-1).view(torch.uint8).numpy().data)


def header(file: Path) -> dict[str, dict[str, list[int]]]:
    data = file.read_bytes()
    found: dict[str, dict[str, list[int]]] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return found


def digest_of_weights(directory: Path) -> str:
    weights = WeightsDigest()
    with safe_open(directory / FILE, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            add(weights, name, file.get_tensor(name))
    return weights.hexdigest()


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        [byte] = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))
