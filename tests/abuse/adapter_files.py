"""The folder of adapters of the engine under attack: many small ones, some good ones, and broken ones."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

from tests.abuse.adapter_attacks import BROKEN, GOOD, HOARD, STORE
from tests.chaos.adapters.names import layers_of, write_adapter

MOST_LOADED = 8
"""Adapters in memory: few, beside the names."""
_HUGE = 64 << 30
"""Bytes of a sparse file."""
_TENSORS = 300_000
"""In the header of a file."""


def write_adapters(model: Path, folder: Path) -> None:
    """The watched folder of the engine under attack."""
    store, layers = folder / STORE, dict(layers_of(model))
    for number in range(GOOD):
        write_adapter(store / f"good-{number}", layers, rank=1, seed=number)
    good = store / "good-0"
    config = json.loads((good / "adapter_config.json").read_text())
    for number in range(HOARD):
        (path := folder / f"hoard-{number}").mkdir()
        (path / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 1 + number / 100}))
        os.link(good / "adapter_model.safetensors", path / "adapter_model.safetensors")
    for name in BROKEN[:-1]:
        shutil.copytree(good, store / name)
        _break(store / name, config)
    (store / "away").symlink_to("/proc")


def _break(adapter: Path, config: dict[str, Any]) -> None:
    """Make an adapter what its folder's name says."""
    weights, written = adapter / "adapter_model.safetensors", json.dumps(config)
    match adapter.name:
        case "huge":
            os.truncate(weights, _HUGE)
        case "header":
            weights.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
        case "tensors":
            header = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(_TENSORS)}
            text = json.dumps(header).encode()
            weights.write_bytes(struct.pack("<Q", len(text)) + text)
        case "pipe":
            weights.unlink()
            os.mkfifo(weights)
        case "names":
            written = json.dumps(config | {"target_modules": ["x"] * 1_000_000})
        case "regex":
            written = json.dumps(config | {"target_modules": "(" * 200 + "a" + "+)" * 200 + "$"})
        case "deep":
            written = '{"a":' * 100_000 + "1" + "}" * 100_000
    (adapter / "adapter_config.json").write_text(written)
