"""Part: what drawing tokens costs, where the vocabulary is large and so is the batch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.place import Place
from benchmarks.gpu.steps import GREEDY, decoding_seconds
from benchmarks.report import Row
from engine_core.request import SamplingParams

_SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02)
_PENALIZED = SamplingParams(temperature=0.0, frequency_penalty=0.3, presence_penalty=0.2, repetition_penalty=1.1)
_OTHERS = {
    "temperature alone": SamplingParams(temperature=0.8),
    "top-p alone": SamplingParams(temperature=0.8, top_p=0.95),
    "sampled and penalized": SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1),
    "five log probabilities": SamplingParams(temperature=0.0, logprobs=5),
}


def measure(place: Place) -> Iterator[Row]:
    """The time of a step for each way to choose a token, beside that of a greedy one."""
    batch = max(batch for batch, _ in place.scale.decoding)
    with place.engine(place.scale.small, max_num_seqs=batch) as engine:

        def seconds(params: SamplingParams) -> float:
            return decoding_seconds(engine.llm, batch, 32, place.scale.step_tokens, params)

        greedy = seconds(GREEDY)
        for name, params in (("sampled", _SAMPLED), ("penalized", _PENALIZED)):
            taken = seconds(params)
            yield GOALS[name].reached(taken / greedy, **{"step ms": 1e3 * taken, "greedy step ms": 1e3 * greedy})
        for kind, params in _OTHERS.items():
            taken = seconds(params)
            what = f"{place.scale.small}, {batch} sequences: {kind}"
            yield {
                "what": what,
                "measured": taken / greedy,
                "of": "greedy step",
                "target": None,
                "step ms": 1e3 * taken,
            }
