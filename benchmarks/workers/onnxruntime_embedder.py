"""ONNX Runtime alone: the exported encoder, a tokenizer, and the pooling in numpy.

``python -m benchmarks.workers.onnxruntime_embedder MODEL FILE.onnx`` exports the encoder by torch.onnx.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from benchmarks.worker import serve_rounds
from benchmarks.workers.embedder import Embedder

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class OnnxRuntimeEmbedder(Embedder):
    """All optimizations of graphs, threads on all cores."""

    def __init__(self, model: str, file: str) -> None:
        options: Any = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session: Any = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._tokenizer: Any = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
        self._tokenizer.enable_padding()
        pooling = json.loads((Path(model) / "1_Pooling" / "config.json").read_text())
        self._is_mean = bool(pooling["pooling_mode_mean_tokens"])

    def embed(self, texts: list[str]) -> Sequence[Any]:
        encodings = self._tokenizer.encode_batch(texts)
        columns = ([e.ids for e in encodings], [e.attention_mask for e in encodings], [e.type_ids for e in encodings])
        inputs = {name: np.array(column, np.int64) for name, column in zip(_INPUTS, columns, strict=True)}
        [rows] = self._session.run(None, inputs)
        pooled = rows[:, 0]
        if self._is_mean:
            mask = inputs["attention_mask"][:, :, None].astype(np.float32)
            pooled = (rows * mask).sum(1) / mask.sum(1)
        vectors: Sequence[Any] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors


def export(model: Path, file: Path) -> None:
    """Write the encoder of ``model`` as ONNX."""
    import torch
    from transformers import AutoModel

    loaded: Any = AutoModel.from_pretrained(model, add_pooling_layer=False, attn_implementation="eager")

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = loaded.eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> Any:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    ids = torch.ones(2, 8, dtype=torch.long)
    axes = {name: {0: "batch", 1: "tokens"} for name in (*_INPUTS, "rows")}
    torch.onnx.export(
        Encoder(),
        (ids, torch.ones_like(ids), torch.zeros_like(ids)),
        str(file),
        input_names=list(_INPUTS),
        output_names=["rows"],
        dynamic_axes=axes,
        dynamo=False,
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        export(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        serve_rounds(OnnxRuntimeEmbedder)
