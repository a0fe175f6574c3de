"""sentence-transformers: by torch, or with ONNX Runtime for the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from benchmarks.worker import serve_rounds
from benchmarks.workers.embedder import Embedder


class SentenceTransformersEmbedder(Embedder):
    """``SentenceTransformer.encode``, all texts of a call in one batch."""

    def __init__(self, model: str, backend: str = "torch", dtype: str = "float32") -> None:
        keywords = {"dtype": getattr(torch, dtype)} if backend == "torch" else {}
        loaded: Any = SentenceTransformer(model, backend=backend, device="cpu", model_kwargs=keywords)
        self._model = loaded

    def embed(self, texts: list[str]) -> Sequence[Any]:
        vectors: Sequence[Any] = self._model.encode(
            texts, batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False
        )
        return vectors


if __name__ == "__main__":
    serve_rounds(SentenceTransformersEmbedder)
