"""Adapters of random numbers, in PEFT's format, for the models of ``benchmarks.shapes``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_COMPLETE = "adapter_model.safetensors"
"""The file that is written last."""


def find_adapters(model: Path, count: int, rank: int, targets: Sequence[str] = ALL_LINEAR) -> list[Path]:
    """The directories of so many adapters of ``model``, beside it, written if missing; in bfloat16."""
    directory = model.with_name(f"{model.name}-adapters-{rank}-{len(targets)}")
    shapes = dict(_linear_layers(model, targets))
    found = [directory / f"{number:04}" for number in range(count)]
    for number, each in enumerate(found):
        if not (each / _COMPLETE).exists():
            _write(each, shapes, rank, number)
    return found


def _linear_layers(model: Path, targets: Sequence[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and shape of the weights of ``targets``."""
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no mapping
                if name.removesuffix(".weight").endswith(tuple(targets)):
                    rows, columns = tensors.get_slice(name).get_shape()
                    yield name.removesuffix(".weight"), (rows, columns)


def _write(directory: Path, shapes: dict[str, tuple[int, int]], rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        for letter, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            numbers = torch.randn(shape, generator=generator) * 0.02
            tensors[f"base_model.model.{name}.lora_{letter}.weight"] = numbers.bfloat16()
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        "bias": "none",
        "base_model_name_or_path": directory.parent.name,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    draft = directory / f"draft-{_COMPLETE}"
    save_file(tensors, draft)
    draft.replace(directory / _COMPLETE)
