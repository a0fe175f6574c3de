"""Loading needs the memory of the packed weights and little more: measured in a process that does nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig

from engine_core.attention.torch_tiled import TorchTiledAttention
from engine_core.models.registry import build_model
from tests.engine_core.models.driver import CPU, open_at
from tests.engine_core.models.tiny_models import make_model, save_model

HIDDEN, INNER, LAYERS = 512, 1536, 10
LAYER_BYTES = (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER) * 2


def anonymous_memory() -> int:
    """Bytes that belong to this process alone: pages of mapped files do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def measure(directory: Path) -> None:
    checkpoint = open_at(directory)
    build_model(checkpoint, TorchTiledAttention(), CPU)  # so that libraries have made what they make once
    peaks = [0]
    before = anonymous_memory()
    model = build_model(
        checkpoint, TorchTiledAttention(), CPU, lambda done, total: peaks.append(anonymous_memory() - before)
    )
    peaks.append(anonymous_memory() - before)
    stored = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    assert 0.5 * stored < max(peaks), (max(peaks), stored)
    assert max(peaks) < model.weight_bytes + 2 * LAYER_BYTES, (max(peaks), model.weight_bytes)
    assert model.weight_bytes < 1.02 * stored, (model.weight_bytes, stored)


def test_loading_takes_the_weights_and_one_layer(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=8,
        vocab_size=2048, tie_word_embeddings=True,
    )  # fmt: skip
    save_model(make_model(config).to(torch.bfloat16), tmp_path)
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, __file__, str(tmp_path)], check=True, env=os.environ | {"PYTHONPATH": root})


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
