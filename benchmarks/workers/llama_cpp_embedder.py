"""llama.cpp's embeddings, through the C interface of llama-cpp-python: no time is spent in its Python classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.worker import serve_rounds
from benchmarks.workers.embedder import Embedder

_MOST_SEQUENCES, _BATCH_TOKENS = 64, 2048


class LlamaCppEmbedder(Embedder):
    """Full batches of whole texts."""

    def __init__(self, model: str) -> None:
        """``model`` is a GGUF file."""
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(model), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._width = llama_cpp.llama_model_n_embd(self._model)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max, params.n_ctx = _MOST_SEQUENCES, _BATCH_TOKENS
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.n_threads = params.n_threads_batch = os.cpu_count()
        params.embeddings = True
        self._context: Any = llama_cpp.llama_init_from_model(self._model, params)
        self._batch: Any = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def embed(self, texts: list[str]) -> Sequence[Any]:
        vectors: list[Any] = []
        together: list[list[int]] = []
        for tokens in map(self._tokens, texts):
            if together and sum(map(len, together)) + len(tokens) > _BATCH_TOKENS:
                vectors += self._compute(together)
                together = []
            together.append(tokens)
        return vectors + self._compute(together)

    def _tokens(self, text: str) -> list[int]:
        encoded = text.encode()
        room: Any = (llama_cpp.llama_token * (len(encoded) + 2))()
        count = llama_cpp.llama_tokenize(self._vocab, encoded, len(encoded), room, len(room), True, True)
        return list(room[:count])

    def _compute(self, sequences: list[list[int]]) -> list[Any]:
        batch, row = self._batch, 0
        for sequence, tokens in enumerate(sequences):
            for position, token in enumerate(tokens):
                batch.token[row], batch.pos[row], batch.logits[row] = token, position, True
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                row += 1
        batch.n_tokens = row
        if (status := llama_cpp.llama_encode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_encode returned {status}")
        return [self._vector(sequence) for sequence in range(len(sequences))]

    def _vector(self, sequence: int) -> Any:
        found = llama_cpp.llama_get_embeddings_seq(self._context, sequence)
        vector = np.ctypeslib.as_array(found, shape=(self._width,)).copy()
        return vector / np.linalg.norm(vector)


if __name__ == "__main__":
    serve_rounds(LlamaCppEmbedder)
