"""50 sampled requests with every option of sampling, some of whose prompts begin alike, as conversations do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

from engine_core.request import NoRepeatNgram, ReasoningBudget, SamplingParams
from engine_core.startup import StartedEngine

from .engines import run

COUNT = 50
VOCAB = 199
BUDGETS = (
    ReasoningBudget(0, (21,)),
    ReasoningBudget(1, (21, 22)),
    ReasoningBudget(6, (21, 22), again=(5,)),
    ReasoningBudget(3, (21,), opening=(5,), again=(5,)),
)
"""Of reasoning that the prompt has begun, and of reasoning that a token begins which some requests make likely."""

RULES = NoRepeatNgram(1, 6, frozenset({8})), NoRepeatNgram(2, 100)
"""Against loops."""


def sampled_params(rng: random.Random) -> SamplingParams:
    def maybe(value: object, default: object) -> object:
        return value if rng.random() < 0.35 else default

    return SamplingParams(
        temperature=rng.choice([0.6, 0.8, 1.0, 1.4]),
        top_k=maybe(rng.choice([3, 20, 100]), None),
        top_p=maybe(rng.choice([0.5, 0.9, 0.99]), 1.0),
        min_p=maybe(rng.choice([0.01, 0.1]), 0.0),
        frequency_penalty=maybe(rng.choice([-0.2, 0.7]), 0.0),
        presence_penalty=maybe(rng.choice([-0.2, 0.7]), 0.0),
        repetition_penalty=maybe(rng.choice([0.9, 1.3]), 1.0),
        logit_bias=maybe({5: 3.0, 8: -4.0}, {}),
        bad_words_token_ids=maybe(((11,), (5, 6), (9, 8, 7)), ()),
        allowed_token_ids=maybe(tuple(range(150)), None),
        min_tokens=maybe(8, 0),
        stop_token_ids=frozenset({17}),
        seed=rng.getrandbits(64),
        n=rng.choice([1, 1, 1, 2, 3]),
        max_tokens=rng.randint(8, 24),
        logprobs=maybe(rng.choice([0, 2]), None),
        prompt_logprobs=maybe(1, None),
    )


class Workload:
    """50 requests; some prompts begin alike, as conversations do."""

    def __init__(self) -> None:
        rng = random.Random(20)
        head = [rng.randrange(3, VOCAB) for _ in range(40)]
        self.prompts = {
            f"{i}": head[: rng.choice([0, 16, 40])] + [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 20))]
            for i in range(COUNT)
        }
        self.params = {name: sampled_params(rng) for name in self.prompts}
        for budget, name in zip(cycle(BUDGETS), list(self.prompts)[::3]):
            self.params[name] = replace(self.params[name], reasoning_budget=budget)
        for rule, name in zip(cycle(RULES), list(self.prompts)[1::4]):
            self.params[name] = replace(self.params[name], no_repeat_ngram=rule)


WORKLOAD = Workload()
Streams = dict[tuple[str, int], tuple[list[int], list[object]]]


def streams(engine: StartedEngine, names: list[str] | None = None) -> Streams:
    """Tokens and log probabilities of each choice, all of ``names`` run together."""
    prompts = {name: WORKLOAD.prompts[name] for name in names or WORKLOAD.prompts}
    outcomes = run(engine, prompts, WORKLOAD.params)
    return {key: (outcome.token_ids, outcome.logprobs) for key, outcome in outcomes.items()}


def begun(whole: Streams, cut: Callable[[list[int]], list[int]]) -> dict[str, dict[int, tuple[int, ...]]]:
    """The beginning of each choice's tokens, as a request resumes them."""
    resume: dict[str, dict[int, tuple[int, ...]]] = {}
    for (name, choice), (token_ids, _) in whole.items():
        resume.setdefault(name, {})[choice] = tuple(cut(token_ids))
    return resume
