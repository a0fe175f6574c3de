"""Variants of the bundled model, each with one change."""

from __future__ import annotations

import json
import shutil
from enum import StrEnum
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.ring import MODEL


class Change(StrEnum):
    TEMPLATE = "template"
    LENGTH = "max_model_len"
    TOKENIZER = "tokenizer"
    WEIGHTS = "weights"


def variant(directory: Path, change: Change | None) -> list[str]:
    """Copy the bundled model to ``directory`` and change it; returns the engine's flags for it."""
    directory.mkdir()
    for file in MODEL.iterdir():
        if file.suffix in (".json", ".jinja", ".safetensors"):
            shutil.copy(file, directory)
    match change:
        case Change.TEMPLATE:
            template = directory / "chat_template.jinja"
            template.write_text("Listen well. " + template.read_text())
        case Change.LENGTH:
            return [str(directory), "--max-model-len", "900"]
        case Change.TOKENIZER:
            _remove_a_merge(directory / "tokenizer.json")
        case Change.WEIGHTS:
            _change_weights(directory / "model.safetensors")
    return [str(directory)]


def _remove_a_merge(file: Path) -> None:
    """Tokenize texts differently, with the same vocabulary."""
    tokenizer = json.loads(file.read_text())
    merges = tokenizer["model"]["merges"]
    del merges[len(merges) // 4]
    file.write_text(json.dumps(tokenizer))


def _change_weights(file: Path) -> None:
    weights = load_file(file)
    for name, tensor in weights.items():
        if name.endswith("down_proj.weight"):
            tensor *= 1.02
    save_file(weights, file, {"format": "pt"})
