"""The ``generate`` method of transformers, in its simplest use."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.work import Outcome, Work
from benchmarks.worker import Engine, serve_rounds


class TransformersEngine(Engine):
    """A transformers model in bfloat16 with its own attention and cache."""

    def __init__(self, model: str) -> None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model = loaded.eval()

    @torch.inference_mode()
    def run(self, work: Work) -> Outcome:
        ids = torch.tensor(work.prompts())
        begun = time.perf_counter()
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=work.output,
            max_new_tokens=work.output,
            do_sample=False,
            pad_token_id=0,
        )
        seconds = time.perf_counter() - begun
        if output.shape[1] != work.prompt + work.output:
            raise RuntimeError("a sequence did not get the tokens it asked for")
        return Outcome(seconds)


if __name__ == "__main__":
    serve_rounds(TransformersEngine)
