"""The adapters of a run: their names, who may use them, how each changes, and the contents that it may stand for."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

BASE = "tiny"
OPERATOR, ONE, TWO, NOBODY = "operator", "one", "two", ""
"""Tenants: the first one changes adapters, the last one's requests name no tenant."""
TENANTS = (ONE, TWO, NOBODY)
MAX_RANK, MAX_ACTIVE, MAX_LOADED = 8, 3, 4
"""Fewer adapters are in memory than there are names: they make room for each other all the time."""
FLAGS = (
    *("--enable-lora", "--max-loras", str(MAX_ACTIVE)),
    *("--max-cpu-loras", str(MAX_LOADED), "--max-lora-rank", str(MAX_RANK)),
)
STORE = "store"
"""Below the engines' folder of adapters: contents that calls load. It is no adapter itself."""
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_STRENGTH = 1.5
"""Of what an adapter adds, beside what its layer computes: enough for other answers."""


class Change(StrEnum):
    """How a name changes while requests ask for it."""

    NEVER = "never"
    FILES = "replaced in the folder"
    FOLDER = "removed from the folder, and put there"
    REMOVED = "removed from the folder for good"
    CALLS = "loaded, replaced and unloaded by calls"
    MISSING = "there is no adapter of that name"


@dataclass(frozen=True, slots=True)
class Name:
    """A name that requests ask for."""

    name: str
    change: Change
    count: int
    """Contents that it may stand for, which no other name has."""
    tenants: tuple[str, ...] = (ONE, TWO)
    """Those that may use it."""

    @property
    def contents(self) -> tuple[str, ...]:
        """Their folders' names in the store."""
        return tuple(f"{self.name}.{number}" for number in range(self.count))


NAMES = {
    each.name: each
    for each in (
        Name("steady", Change.NEVER, 1),
        Name("steady-of-one", Change.NEVER, 1, (ONE,)),
        Name("turning", Change.FILES, 3),
        Name("coming", Change.FOLDER, 2),
        Name("leaving", Change.REMOVED, 1),
        Name("called", Change.CALLS, 3),
        Name("called-of-two", Change.CALLS, 2, (TWO,)),
        Name("missing", Change.MISSING, 0),
    )
}
CONTENTS = {contents: each.name for each in NAMES.values() for contents in each.contents}
"""All contents, and the one name that may stand for each."""


def write_all(model: Path, folder: Path) -> None:
    """Write contents into the store, and adapters of the start into ``folder``."""
    layers = dict(layers_of(model))
    for number, contents in enumerate(CONTENTS):
        write_adapter(folder / STORE / contents, layers, rank=1 + number % MAX_RANK, seed=number)
    for each in NAMES.values():
        if each.change not in (Change.CALLS, Change.MISSING):
            shutil.copytree(folder / STORE / each.contents[0], folder / each.name)


def write_policies(file: Path) -> Path:
    """A file of tenants: each may use the base alone, and adapters by one of the two ways to permit them."""
    lines = ["[default]", f'models = ["{BASE}"]', f"[tenants.{OPERATOR}]"]
    lines += [f'models = ["{BASE}", "{BASE}:*"]', "adapter_control = true"]
    for tenant in (ONE, TWO):
        permitted = [each.name for each in NAMES.values() if tenant in each.tenants]
        entries = [BASE, *(f"{BASE}:{name}" if at % 2 else name for at, name in enumerate(permitted))]
        lines += [f"[tenants.{tenant}]", f"models = {json.dumps(entries)}"]
    file.write_text("\n".join(lines) + "\n")
    return file


def layers_of(model: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Linear layers of a checkpoint, with their outputs and inputs."""
    with safe_open(model / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            layer = name.removesuffix(".weight")
            if layer.endswith(_MODULES):
                outputs, inputs = file.get_slice(name).get_shape()
                yield layer, (outputs, inputs)


def write_adapter(path: Path, layers: Mapping[str, tuple[int, int]], rank: int, seed: int) -> None:
    """Random numbers for some kinds of layers."""
    modules = random.Random(seed).sample(_MODULES, 4)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer, (outputs, inputs) in layers.items():
        if layer.endswith(tuple(modules)):
            name = f"base_model.model.{layer}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) / rank**0.5
    path.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": _STRENGTH * rank, "target_modules": modules}
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, path / "adapter_model.safetensors")
