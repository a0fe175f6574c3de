"""Loading needs the memory of the packed weights and little more: measured in a process that does nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from engine_core.model_loader import digest
from engine_core.model_loader import safetensors_reader as stored
from engine_core.model_loader.gguf import weights
from engine_core.ops.torch import TorchLinear
from tests.engine_core.model_loader.gguf.written import quantized, write_gguf
from tests.engine_core.models.driver import build_model, open_at
from tests.engine_core.models.tiny_models import make_model, save_model
from tests.engine_core.quantization.quantizing import awq, save_quantized

HIDDEN, INNER, LAYERS = 512, 1536, 10
SHARES = {None: 1.02, "int8": 0.52, "awq": 1.05, "gguf": 1.05}
"""Of the file's size, at most."""
LAYER_BYTES = (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER) * 2


def resident(kind: str) -> int:
    """Bytes of this process: ``RssAnon`` are its alone, ``RssFile`` are pages of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) * 1024
    raise AssertionError(kind)


def measure(path: Path, quantization: str | None) -> None:
    stored._MAPPED_AT_ONCE = weights._MAPPED_AT_ONCE = 2**22
    digest._BLOCK_BYTES = 2**20
    checkpoint = open_at(path, quantization=quantization if quantization == "int8" else None)
    TorchLinear(torch.randn(64, 64).bfloat16())  # so that libraries have made what they make once
    before = {kind: resident(kind) for kind in ("RssAnon", "RssFile")}
    peak = {"RssAnon": 0, "RssFile": 0}

    def record(done: int, total: int) -> None:
        for kind, base in before.items():
            peak[kind] = max(peak[kind], resident(kind) - base)

    model = build_model(checkpoint, on_progress=record, digest=digest.WeightsDigest())
    record(0, 0)
    file_size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.glob("*.safetensors")))
    assert 0.5 * model.weight_bytes < peak["RssAnon"] < model.weight_bytes + 2 * LAYER_BYTES, (peak, model.weight_bytes)
    # Of a GGUF file, pages are given back within a tensor, too.
    assert peak["RssFile"] < 2**22 + (2**23 if quantization == "gguf" else 2 * LAYER_BYTES), peak
    assert model.weight_bytes < SHARES[quantization] * file_size, (model.weight_bytes, file_size)
    expected = model.expected_weight_bytes
    assert 0.98 * expected < model.weight_bytes < 1.02 * expected, (model.weight_bytes, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    "quantization", ["int8", *[pytest.param(q, marks=pytest.mark.models) for q in (None, "awq", "gguf")]]
)
def test_loading_takes_the_weights_and_one_layer(quantization: str | None, tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=8,
        vocab_size=65536 if quantization == "gguf" else 2048, tie_word_embeddings=True,
    )  # fmt: skip
    if quantization == "gguf":
        save_model(make_model(config).to(torch.bfloat16), tmp_path)
        path = write_gguf(tmp_path, config, tmp_path / "model.gguf", quantized("Q4_K"))
    elif quantization == "awq":
        path = save_quantized(config, awq(128), tmp_path, torch.bfloat16)
    else:
        path = save_model(make_model(config).to(torch.bfloat16), tmp_path)
    root = str(Path(__file__).parents[3])
    subprocess.run(
        [sys.executable, __file__, str(path), *filter(None, [quantization])],
        check=True,
        env=os.environ | {"PYTHONPATH": root},
    )


if __name__ == "__main__":
    measure(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
