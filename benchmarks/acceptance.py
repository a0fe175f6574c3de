"""How often a draft is the token that the model draws: with the model's own noise, and with noise of the drafter's own.

A draft is accepted if it equals the draw. So what is counted needs no engine that speculates: the model answers, then
the drafter draws one token after each beginning of the answer, once with the model's seed and once with another one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.report import Row
from engine_core.llm import LLM
from engine_core.request import SamplingParams

TEMPERATURES = (0.0, 0.7, 1.0)
_OTHER_SEED = 1 << 40
"""Added to a seed for noise of the drafter's own."""
_MAX_MODEL_LEN = 1024
_ENGINE: dict[str, Any] = {"max_model_len": _MAX_MODEL_LEN, "max_num_seqs": 64, "kv_cache_memory_bytes": 256 << 20}


@dataclass(frozen=True, slots=True)
class Lookup:
    """N-grams: what followed the last time that the last tokens came, those of the longest run first."""

    shortest: int = 2
    longest: int = 5

    def drafts(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most ``count`` tokens that may follow."""
        for run in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            wanted = tokens[-run:]
            for end in range(len(tokens) - 1, run - 1, -1):
                if tokens[end - run : end] == wanted:
                    return list(tokens[end : end + count])
        return []


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer at one temperature."""

    prompt: list[int]
    tokens: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Rounds:
    """Steps that would have computed the answers with drafts."""

    steps: int
    drafts: int
    accepted: int

    @property
    def share(self) -> float:
        """Accepted drafts of all drafts."""
        return self.accepted / max(1, self.drafts)

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a step: its accepted drafts and one more."""
        return (self.accepted + self.steps) / self.steps


def answers(llm: LLM, prompts: Sequence[list[int]], temperature: float, tokens: int) -> list[Answer]:
    """What the model answers; each request has a seed of its own."""
    params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens) for seed in range(len(prompts))]
    results = llm.generate(list(prompts), params, use_tqdm=False)
    return [
        Answer(prompt, list(result.outputs[0].token_ids), each)
        for prompt, result, each in zip(prompts, results, params, strict=True)
    ]


def agreements(drafter: LLM, answer: Answer, other_noise: bool) -> list[bool]:
    """For each token of the answer, whether the drafter draws it after those before."""
    seed = answer.params.seed + (_OTHER_SEED if other_noise else 0)
    params = replace(answer.params, seed=seed, max_tokens=1)
    begun = [[*answer.prompt, *answer.tokens[:length]] for length in range(len(answer.tokens))]
    results = drafter.generate(begun, params, use_tqdm=False)
    return [result.outputs[0].token_ids[0] == token for result, token in zip(results, answer.tokens, strict=True)]


def rounds_of(agreed: Sequence[bool], count: int) -> Rounds:
    """Steps with ``count`` drafts each, which end at the first draft that was not drawn."""
    steps = drafts = accepted = place = 0
    while place < len(agreed):
        proposed = agreed[place : place + min(count, len(agreed) - place - 1)]
        right = next((number for number, each in enumerate(proposed) if not each), len(proposed))
        steps, drafts, accepted, place = steps + 1, drafts + len(proposed), accepted + right, place + right + 1
    return Rounds(steps, drafts, accepted)


def looked_up(answer: Answer, lookup: Lookup, count: int) -> Rounds:
    """The same with drafts that are looked up in the tokens so far; many steps have none."""
    steps = drafts = accepted = place = 0
    while place < len(answer.tokens):
        left = len(answer.tokens) - place - 1
        proposed = lookup.drafts([*answer.prompt, *answer.tokens[:place]], min(count, left)) if left else []
        follows = answer.tokens[place : place + len(proposed)]
        right = next(
            (n for n, pair in enumerate(zip(proposed, follows, strict=True)) if pair[0] != pair[1]), len(follows)
        )
        steps, drafts, accepted, place = steps + 1, drafts + len(proposed), accepted + right, place + right + 1
    return Rounds(steps, drafts, accepted)


def _sum(rounds: Sequence[Rounds]) -> Rounds:
    return Rounds(*(sum(getattr(each, name) for each in rounds) for name in ("steps", "drafts", "accepted")))


def model_rows(target: str, drafters: Mapping[str, str], prompts: Sequence[list[int]], tokens: int) -> list[Row]:
    """A row per drafter and temperature. ``drafters``: checkpoints by what they are called."""
    with LLM(target, **_ENGINE) as llm:
        given = {temperature: answers(llm, prompts, temperature, tokens) for temperature in TEMPERATURES}
    rows: list[Row] = []
    for name, checkpoint in drafters.items():
        with LLM(checkpoint, **_ENGINE) as drafter:
            for temperature, found in given.items():
                own, other = (
                    [agreements(drafter, answer, other_noise) for answer in found] for other_noise in (False, True)
                )
                rows.append(_row(name, temperature, own, other))
    return rows


def _row(name: str, temperature: float, own: Sequence[list[bool]], other: Sequence[list[bool]]) -> Row:
    rounds, others = (_sum([rounds_of(agreed, 4) for agreed in each]) for each in (own, other))
    return {
        "drafts": name,
        "temperature": temperature,
        "equal, same noise": statistics.fmean(each for agreed in own for each in agreed),
        "equal, own noise": statistics.fmean(each for agreed in other for each in agreed),
        "tokens per step, same noise": rounds.tokens_per_step,
        "tokens per step, own noise": others.tokens_per_step,
    }


def lookup_rows(target: str, tasks: Mapping[str, Sequence[list[int]]], tokens: int) -> list[Row]:
    """A row per kind of text and temperature, with drafts that are looked up; they have no noise."""
    rows: list[Row] = []
    with LLM(target, **_ENGINE) as llm:
        for name, prompts in tasks.items():
            for temperature in TEMPERATURES:
                found = _sum([looked_up(each, Lookup(), 8) for each in answers(llm, prompts, temperature, tokens)])
                rows.append(
                    {
                        "text": name,
                        "temperature": temperature,
                        "accepted of drafts": found.share,
                        "tokens per step": found.tokens_per_step,
                    }
                )
    return rows


def engine_row(target: str, drafter: str, prompts: Sequence[list[int]], tokens: int, temperature: float) -> Row:
    """The same drafts in an engine that speculates, which decides by itself how many it computes."""
    import json

    config: dict[str, Any] = {"method": "draft_model", "model": drafter, "num_speculative_tokens": 4}
    with LLM(target, speculative_config=json.dumps(config), **_ENGINE) as llm:
        answers(llm, prompts, temperature, tokens)
        stats = llm.stats()
    return {
        "temperature": temperature,
        "rounds": stats.drafts,
        "drafts": stats.draft_tokens,
        "accepted": stats.accepted_draft_tokens / max(1, stats.draft_tokens),
    }
