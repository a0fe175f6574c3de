"""vLLM, offline, on CPU."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.work import Outcome, Work
from benchmarks.worker import Engine, serve_rounds


class VllmEngine(Engine):
    """``vllm.LLM`` in bfloat16, without the prefix cache, for up to 256 sequences."""

    def __init__(self, model: str, **options: Any) -> None:
        """``options``: further options of ``vllm.LLM``."""
        import vllm
        from vllm.sampling_params import StructuredOutputsParams

        self._params, self._structured = vllm.SamplingParams, StructuredOutputsParams
        settings = {"dtype": "bfloat16", "enable_prefix_caching": False, "max_num_seqs": 256} | options
        self._llm = vllm.LLM(model=model, **settings)
        self._numbers: dict[str, int] = {}

    def run(self, work: Work) -> Outcome:
        params = self._params(
            temperature=0.0,
            max_tokens=work.output,
            ignore_eos=True,
            structured_outputs=self._structured(json=work.json_schema) if work.json_schema else None,
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in work.prompts()]
        adapters = [self._adapter(path) for path in work.adapters] or None
        begun = time.perf_counter()
        results = self._llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
        seconds = time.perf_counter() - begun
        if any(len(result.outputs[0].token_ids) != work.output for result in results):
            raise RuntimeError("a sequence did not get the tokens it asked for")
        return Outcome(seconds)

    def _adapter(self, path: str) -> Any:
        """A request for the adapter at ``path``, which has a number of its own; None without a path."""
        if not path:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(path, self._numbers.setdefault(path, 1 + len(self._numbers)), path)


if __name__ == "__main__":
    serve_rounds(VllmEngine)
