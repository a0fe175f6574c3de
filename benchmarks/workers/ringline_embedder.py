"""The project's own engine, offline, as an embedder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.worker import serve_rounds
from benchmarks.workers.embedder import Embedder


class RinglineEmbedder(Embedder):
    """By ``LLM.embed``."""

    def __init__(self, model: str, **options: Any) -> None:
        """``options``: the engine's options."""
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, below
        from engine_core.llm import LLM

        self._llm = LLM(model, **options)

    def embed(self, texts: list[str]) -> Sequence[Any]:
        return [result.outputs.embedding for result in self._llm.embed(texts)]


if __name__ == "__main__":
    serve_rounds(RinglineEmbedder)
