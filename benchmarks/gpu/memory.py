"""Part: memory under the heaviest load that an engine admits, beside what its start has set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.place import Place
from benchmarks.report import Row
from benchmarks.work import Work
from engine_core.request import SamplingParams

_UTILIZATION = 0.9
_TELLING = ("profile", "allocate KV cache", "warm up")
"""The stages whose details say what was expected."""
_EVERYTHING = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1, logprobs=5)


def measure(place: Place) -> Iterator[Row]:
    """More sequences than a step takes, of prompts that fill it, with every feature of the sampler."""
    batch = max(batch for batch, _ in place.scale.decoding)
    before = place.taken()
    with place.engine(place.scale.small, max_num_seqs=batch, gpu_memory_utilization=_UTILIZATION) as engine:
        reserved = place.reserved()
        work = Work(batch + batch // 4, min(1024, 4 * place.scale.step_tokens), 32, seed=1)
        params = replace(_EVERYTHING, max_tokens=work.output, ignore_eos=True)
        engine.llm.generate(work.prompts(), params, use_tqdm=False)
        taken, grown = place.taken(), place.reserved() - reserved
        told = {stage.name: stage.detail for stage in engine.stages if stage.name in _TELLING}
    mib = {"MiB": taken / 2**20, "before the start, MiB": before / 2**20}
    yield GOALS["memory"].reached(taken / (_UTILIZATION * place.total()), **mib, **told)
    yield GOALS["allocated"].reached(grown / 2**20)
