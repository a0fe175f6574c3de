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
from engine_core.scheduling.ngram import STRONGEST, RunIndex
from engine_core.speculation import SpeculativeConfig

TEMPERATURES = (0.0, 0.7, 1.0)
_OTHER_SEED = 1 << 40
"""Added to a seed for noise of the drafter's own."""
_MAX_MODEL_LEN = 1024
_LOOKUP = SpeculativeConfig("ngram", num_speculative_tokens=8)
_ENGINE: dict[str, Any] = {"max_model_len": _MAX_MODEL_LEN, "max_num_seqs": 64, "kv_cache_memory_bytes": 256 << 20}


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


def looked_up(answer: Answer, count: int) -> Rounds:
    """The same with drafts that the engine's index finds in the tokens so far; many steps have none."""
    index = RunIndex(_LOOKUP.prompt_lookup_min, 1 << 12)
    index.extend(answer.prompt)
    tokens, steps, drafts, accepted, place = list(answer.prompt), 0, 0, 0, 0
    while place < len(answer.tokens):
        found, length = index.find(tuple(tokens[-STRONGEST:]), _LOOKUP.prompt_lookup_max)
        most = min(count, len(answer.tokens) - place - 1)
        proposed = index.following(found, most, repeat=True) if length and most else []
        right = _num_equal(proposed, answer.tokens[place:])
        steps, drafts, accepted = steps + 1, drafts + len(proposed), accepted + right
        new = answer.tokens[place : place + right + 1]
        index.extend(new)
        tokens += new
        place += right + 1
    return Rounds(steps, drafts, accepted)


def _num_equal(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    return next((number for number, draft in enumerate(drafts) if draft != tokens[number]), len(drafts))


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
                found = _sum(
                    [
                        looked_up(each, _LOOKUP.num_speculative_tokens)
                        for each in answers(llm, prompts, temperature, tokens)
                    ]
                )
                rows.append(
                    {
                        "text": name,
                        "temperature": temperature,
                        "accepted of drafts": found.share,
                        "tokens per step": found.tokens_per_step,
                    }
                )
    return rows
