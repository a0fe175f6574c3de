"""The best of more choices than are returned."""

from __future__ import annotations

import math

from engine_core.offline.outputs import CompletionOutput
from engine_core.offline.sampling_params import SamplingParams


def best_choices(choices: list[CompletionOutput], params: SamplingParams) -> list[CompletionOutput]:
    """The ``n`` of ``choices`` whose tokens are the most likely on average, the best first, numbered anew.

    They have log probabilities, which are dropped unless ``params`` ask for them.
    """
    best = sorted(choices, key=_mean_logprob, reverse=True)[: params.n]
    for index, choice in enumerate(best):
        choice.index = index
        choice.logprobs = choice.logprobs if params.logprobs is not None else None
    return best


def _mean_logprob(choice: CompletionOutput) -> float:
    """−inf without tokens."""
    return choice.cumulative_logprob / len(choice.token_ids) if choice.cumulative_logprob is not None else -math.inf
