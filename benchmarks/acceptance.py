"""How often a draft is the token that the model draws: with the model's own noise, and with noise of the drafter's own.

A draft is accepted if it equals the draw. So what is counted needs no engine that speculates: the model answers, then
the drafter draws one token after each beginning of the answer, once with the model's seed and once with another one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import tasks, twins
from benchmarks.report import Row, print_table
from benchmarks.shapes import find_smollm2
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from engine_core.scheduling.ngram import STRONGEST, RunIndex
from engine_core.speculation import SpeculativeConfig

TEMPERATURES = (0.0, 0.7, 1.0)
_BUNDLED = Path(__file__).resolve().parents[1] / "checkpoints" / "tiny"
_SMOLLM2_LAYERS = 20
"""Of the 30, in the twin that drafts for it."""
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
                own = [agreements(drafter, answer, other_noise=False) for answer in found]
                other = [agreements(drafter, answer, other_noise=True) for answer in found] if temperature else own
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


@dataclass(frozen=True, slots=True)
class Choice:
    """Which models are asked."""

    models: Path
    """Where twins are made and kept."""
    models_of: Sequence[str] = ("bundled", "smollm2")
    smollm2: str = "smollm2"
    """Its GGUF file, or the name of the installed package's."""
    twin: Path | None = None
    """What drafts for SmolLM2; None: some of its layers."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A model, those that draft for it, and what it is asked."""

    name: str
    model: str
    drafters: dict[str, str]
    texts: dict[str, list[list[int]]]


def measure(choice: Choice, answers_of_each: int) -> list[Row]:
    """Rows of ``model_rows`` and ``lookup_rows`` for every model."""
    rows: list[Row] = []
    for pair in _pairs(choice, answers_of_each):
        prompts = [prompt for of_text in pair.texts.values() for prompt in of_text]
        own = [{"model": pair.name, **row} for row in model_rows(pair.model, pair.drafters, prompts, 64)]
        print_table(own, f"{pair.name}: drafts of a model")
        looked = [{"model": pair.name, **row} for row in lookup_rows(pair.model, pair.texts, 96)]
        print_table(looked, f"{pair.name}: n-grams")
        rows += [*own, *looked]
    return rows


def _pairs(choice: Choice, count: int) -> Iterator[_Pair]:
    if "bundled" in choice.models_of:
        twin = choice.models / "tiny-twin"
        questions = tasks.chats(tasks.tokenizer_of(_BUNDLED), tasks.bundled_questions())
        if not (twin / "config.json").exists():
            twins.make_twin(_BUNDLED, twin, 2, questions[2 * count :], twins.Training(steps=150))
        drafters = {"itself": str(_BUNDLED), "2 of 5 layers, trained": str(twin)}
        yield _Pair("the bundled model", str(_BUNDLED), drafters, {"chats": questions[: 2 * count]})
    if "smollm2" in choice.models_of and (file := find_smollm2(choice.smollm2)) is not None:
        pruned = choice.twin or choice.models / "smollm2-twin.gguf"
        tokenizer = tasks.tokenizer_of(file)
        if not pruned.exists():
            choice.models.mkdir(parents=True, exist_ok=True)
            twins.make_twin(file, pruned, _SMOLLM2_LAYERS, tasks.STORIES.prompts(tokenizer, 2, count), None)
        drafters = {
            "itself": str(file),
            "a twin" if choice.twin else f"{_SMOLLM2_LAYERS} of 30 layers": str(pruned),
        }
        texts = {task.name: task.prompts(tokenizer, count) for task in tasks.TASKS}
        yield _Pair("SmolLM2-135M", str(file), drafters, texts)
