"""llama.cpp, through the C interface of llama-cpp-python: no time is spent in its Python classes."""

from __future__ import annotations

import os
import time
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.work import Outcome, Work
from benchmarks.worker import Engine, serve_rounds

_BATCH_TOKENS = 2048


class LlamaCppEngine(Engine):
    """Computes all prompts in full batches, then one token of every sequence per call."""

    def __init__(self, model: str, threads: int | None = None) -> None:
        """``model`` is a GGUF file."""
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(model), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._threads = threads or os.cpu_count()
        self._room = (0, 0)
        """Number of sequences, and tokens of the longest one, for which the context has room."""
        self._context: Any = None
        self._batch: Any = None

    def run(self, work: Work) -> Outcome:
        self._make_context(work)
        return self._generate(work)

    def _generate(self, work: Work) -> Outcome:
        prompts = work.prompts()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        begun = time.perf_counter()
        tokens = self._prefill(prompts)
        for position in range(work.prompt, work.prompt + work.output - 1):
            tokens = self._decode([(s, position, token, True) for s, token in enumerate(tokens)])
        return Outcome(time.perf_counter() - begun)

    def _make_context(self, work: Work) -> None:
        """Make a context with room for the work, unless there is one; not timed."""
        batch, length = work.batch, work.prompt + work.output
        if self._room[0] == batch and self._room[1] >= length:
            return
        if self._context is not None:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max, params.n_ctx = batch, batch * (length + 8)
        params.n_batch, params.n_ubatch = _BATCH_TOKENS, 512
        params.n_threads = params.n_threads_batch = self._threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self._room = (batch, length)
        self._generate(Work(work.batch, work.prompt, output=1, seed=-2))  # touches the context's memory

    def _prefill(self, prompts: list[list[int]]) -> list[int]:
        """The first token of each sequence; each call computes as many prompts as fit."""
        first: list[int] = []
        rows: list[tuple[int, int, int, bool]] = []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                if len(rows) == _BATCH_TOKENS:
                    first += self._decode(rows)
                    rows = []
                rows.append((sequence, position, token, position == len(prompt) - 1))
        return first + self._decode(rows)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (sequence, position, token, whether to sample) rows; returns the likeliest token of each sampled."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (sequence, position, token, sampled) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, sampled
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        if (status := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        return [self._likeliest(row) for row, (_, _, _, sampled) in enumerate(rows) if sampled]

    def _likeliest(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


if __name__ == "__main__":
    serve_rounds(LlamaCppEngine)
