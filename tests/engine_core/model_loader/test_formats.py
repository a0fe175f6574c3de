"""Weights in formats that are not read are named as what they are, with what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.location import check_location
from engine_core.model_loader.safetensors_reader import find_tensors
from engine_core.model_loader.tokenizer import tokenizer_directory
from tests.engine_core.model_loader.test_checkpoint import LLAMA
from tests.engine_core.models.driver import open_at

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 3\n"
FILES = {
    "pytorch_model-00001-of-00002.bin": "a PyTorch file, of which transformers' are read (a directory with pytorch_",
    "model.pt": "a PyTorch file",
    "consolidated.00.pth": "in its publisher's own format, which is not read: choose",
    "model.onnx": "an ONNX file",
    "flax_model.msgpack": "a Flax file",
    "tf_model.h5": "a TensorFlow file",
}


@pytest.mark.parametrize("name", FILES)
def test_other_formats(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(CheckpointError, match=re.escape(f"{file} is {FILES[name]}")):
        check_location(str(file))
    (tmp_path / "optimizer.bin").touch()
    with pytest.raises(CheckpointError, match=re.escape(f"has no config.json; its {name} is {FILES[name]}")):
        check_location(str(tmp_path))
    with pytest.raises(CheckpointError, match=re.escape(f"has no model.safetensors; its {name} is {FILES[name]}")):
        find_tensors(tmp_path)


def test_a_file_of_transformers_is_read_from_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.touch()
    with pytest.raises(CheckpointError, match=r"is a file: give the directory that has the checkpoint's config\.json"):
        check_location(str(file))
    with pytest.raises(CheckpointError, match=r"has no config\.json: give the directory of a checkpoint"):
        check_location(str(tmp_path))


def test_the_published_format_of_mistral(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"its consolidated\.safetensors is in its publisher's own format"):
        find_tensors(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_config.json", "give the directory of its base model, and --enable-lora --lora-modules name="),
        ("model_index.json", "it is a pipeline of diffusers"),
    ],
)
def test_directories_of_other_things(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        check_location(str(tmp_path))


def read(directory: Path) -> None:
    open_at(directory)
    find_tensors(directory)


def find_tokenizer(directory: Path) -> None:
    with tokenizer_directory(ModelConfig(model=str(directory))):
        pass


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("config.json", read),
        ("model.safetensors", read),
        ("model.safetensors.index.json", read),
        ("pytorch_model.bin", read),
        ("pytorch_model.bin.index.json", read),
        ("tokenizer.json", find_tokenizer),
        ("tokenizer.model", find_tokenizer),
    ],
)
def test_a_pointer_of_git_lfs_is_not_the_file(name: str, look: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / name).write_bytes(POINTER)
    expected = re.escape(f"{tmp_path / name} is a Git LFS pointer, not the file itself: run `git lfs pull`")
    with pytest.raises(CheckpointError, match=expected):
        look(tmp_path)
