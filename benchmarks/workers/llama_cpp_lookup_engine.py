"""llama.cpp through the classes of llama-cpp-python, which has its only drafts: one sequence at a time."""

from __future__ import annotations

import os
import time
from itertools import islice

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.work import Outcome, Work
from benchmarks.worker import Engine, serve_rounds

_CONTEXT = 1024


class LlamaCppLookupEngine(Engine):
    """Greedy; drafts are looked up in the tokens so far."""

    def __init__(self, model: str, drafts: int = 0) -> None:
        """``model`` is a GGUF file; ``drafts``: tokens that are looked up for a step, 0 for none."""
        self._llama = Llama(
            model,
            n_ctx=_CONTEXT,
            n_threads=os.cpu_count(),
            n_threads_batch=os.cpu_count(),
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=drafts) if drafts else None,
            verbose=False,
        )

    def run(self, work: Work) -> Outcome:
        answers, decoded = list[list[int]](), 0.0
        begun = time.perf_counter()
        for prompt in work.prompts():
            answer, seconds = self._answer(prompt, work)
            answers.append(answer)
            decoded += seconds
        return Outcome(time.perf_counter() - begun, token_ids=answers, decode_seconds=decoded)

    def _answer(self, prompt: list[int], work: Work) -> tuple[list[int], float]:
        """The answer, and the seconds between its first token and its last."""
        self._llama.reset()
        answer, first = list[int](), 0.0
        for token in islice(self._llama.generate(prompt, temp=0.0, repeat_penalty=1.0), work.output):
            answer.append(token)
            first = first or time.perf_counter()
            if work.ends and token == self._llama.token_eos():
                break
        return answer, time.perf_counter() - first


if __name__ == "__main__":
    serve_rounds(LlamaCppLookupEngine)
