"""Checkpoints that say nearly what another one says: its drafts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def pruned(source: Path, directory: Path, layers: list[int]) -> Path:
    """A checkpoint that has only these layers of another one."""
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("*.py", "corpus"), dirs_exist_ok=True)
    weights = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        head, _, rest = name.partition("layers.")
        layer, _, part = rest.partition(".")
        if not rest:
            weights[name] = tensor
        elif int(layer) in layers:
            weights[f"{head}layers.{layers.index(int(layer))}.{part}"] = tensor
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = len(layers)
    if "layer_types" in config:
        config["layer_types"] = [config["layer_types"][layer] for layer in layers]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def perturbed(source: Path, directory: Path, share: float = 0.05) -> Path:
    """A checkpoint whose matrices differ from another one's by ``share`` of their own deviation: it often agrees."""
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("*.py", "corpus"), dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(source / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim > 1 and tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
            weights[name] = (tensor.float() + share * noise).to(tensor.dtype)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
