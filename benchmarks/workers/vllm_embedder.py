"""vLLM's pooling, offline, on CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.worker import serve_rounds
from benchmarks.workers.embedder import Embedder


class VllmEmbedder(Embedder):
    """By ``vllm.LLM.embed``."""

    def __init__(self, model: str, **options: Any) -> None:
        """``options``: further options of ``vllm.LLM``."""
        import vllm

        settings = {"runner": "pooling", "dtype": "float32", "max_num_seqs": 256} | options
        self._llm: Any = vllm.LLM(model=model, **settings)

    def embed(self, texts: list[str]) -> Sequence[Any]:
        return [result.outputs.embedding for result in self._llm.embed(texts, use_tqdm=False)]


if __name__ == "__main__":
    serve_rounds(VllmEmbedder)
