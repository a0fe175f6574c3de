"""Tokens that a grammar forces come as drafts: they save steps, and change no token, log probability or end.

Answers of the bundled model in a JSON schema, with drafts beside those without, whatever else goes on: chunks,
preemption, steps that overlap, stages, and beginnings that other engines made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine_core.engine import EngineCore
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.request import FinishReason, ReasoningBudget, SamplingParams
from engine_core.startup import StartedEngine, start_executor

from .engines import run, started
from .executor.threaded_workers import ThreadedWorkers

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "favourite_colour": {"enum": ["red", "green", "blue"]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 10},
                "postal_code": {"type": "integer", "minimum": 10000, "maximum": 99999},
            },
            "required": ["street", "postal_code"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "favourite_colour", "address"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}


SIZES = {"num_threads": 1, "max_model_len": 200, "kv_cache_memory_bytes": 32 << 20}
LITTLE_CACHE = {"block_size": 4, "kv_cache_memory_bytes": 2 << 20}
"""For about 400 tokens."""


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]


GREEDY = SamplingParams(
    temperature=0.0, max_tokens=90, logprobs=1, grammar=json.dumps({"grammars": [{"json_schema": SCHEMA}]})
)
RANDOM = replace(GREEDY, temperature=1.0, seed=7)
MARKER = 1
"""A special token, which ends the reasoning here."""
REASONED = json.dumps(
    {
        "grammars": [
            {"lark_grammar": f"start: /(?s:.*)/ <[{MARKER}]> @answer"},
            {"name": "answer", "json_schema": SCHEMA},
        ]
    }
)
PARAMS = {
    "greedy": GREEDY,
    "greedy, tokens alone": replace(GREEDY, logprobs=None),
    "random": RANDOM,
    "penalties": replace(RANDOM, seed=1, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.3),
    "a stop token in a forced text": replace(RANDOM, seed=2, stop_token_ids=frozenset(ids_of("favourite_colour")[2:3])),
    "stop tokens that are free": replace(RANDOM, seed=3, stop_token_ids=frozenset(range(40, 80)), min_tokens=20),
    "min_tokens": replace(GREEDY, min_tokens=80),
    "bad words": replace(RANDOM, seed=4, bad_words_token_ids=tuple(tuple(ids_of(w)) for w in ("red", "1", "an", ","))),
    "ignore_eos": replace(RANDOM, seed=5, ignore_eos=True, top_k=50, top_p=0.9),
    "cut short": replace(RANDOM, seed=6, max_tokens=23, prompt_logprobs=1),
    "choices": replace(RANDOM, seed=8, n=2, logit_bias=dict.fromkeys(ids_of("0123"), 3.0)),
    "free": replace(RANDOM, grammar=None, max_tokens=30),
    "reasoning": replace(
        RANDOM, seed=9, grammar=REASONED, logit_bias={MARKER: -100.0}, reasoning_budget=ReasoningBudget(9, (MARKER,))
    ),
}
PROMPTS = {
    name: ids_of(f"Describe a person as JSON, number {place}: " + "with care, " * (2 * place))
    for place, name in enumerate(PARAMS)
}
Answers = dict[tuple[str, int], tuple[list[int], list[object], object]]


def answers(engine: StartedEngine, resume: dict[str, dict[int, tuple[int, ...]]] | None = None) -> Answers:
    """Tokens, log probabilities and end of each choice; ``resume``: of these requests alone, and what is new."""
    prompts = PROMPTS if resume is None else {name: PROMPTS[name.partition("/")[0]] for name in resume}
    params = {name: PARAMS[name.partition("/")[0]] for name in prompts}
    outcomes = run(engine, prompts, params, resume)
    return {key: (each.token_ids, each.logprobs, each.outputs[-1].finish) for key, each in outcomes.items()}


def tiny(**options: object) -> AbstractContextManager[StartedEngine]:
    return started(TINY, **(SIZES | options))


@contextmanager
def in_stages(**options: object) -> Iterator[StartedEngine]:
    config = configure(model=str(TINY), dtype="float32", pipeline_parallel_size=2, **(SIZES | options))
    executor = start_executor(ThreadedWorkers(config), StartupProgress())
    try:
        yield StartedEngine(EngineCore(config, executor), executor)
    finally:
        executor.close()


@pytest.fixture(scope="module")
def expected() -> Answers:
    with tiny(num_speculative_tokens=0) as engine:
        return answers(engine)


def test_the_answers_are_various_and_end_as_they_should(expected: Answers) -> None:
    found = {name: tokens for (name, choice), (tokens, _, _) in expected.items() if choice == 0}
    assert found["reasoning"].index(MARKER) == 9
    found["reasoning"] = found["reasoning"][10:]
    texts = {name: TOKENIZER.decode(tokens) for name, tokens in found.items()}
    for name, text in texts.items():
        cut = name in ("free", "cut short") or "stop" in name
        assert cut or set(json.loads(text)) == set(SCHEMA["required"])  # type: ignore[call-overload]
    assert len(set(texts.values())) >= len(texts) - 2
    reasons = {name: finish.finish_reason for (name, _), (_, _, finish) in expected.items()}  # type: ignore[attr-defined]
    assert reasons.pop("cut short") is FinishReason.LENGTH
    assert reasons.pop("free") is FinishReason.LENGTH
    assert set(reasons.values()) == {FinishReason.STOP}


OPTIONS: dict[str, dict[str, object]] = {
    "alone": {},
    "overlapping": {"async_scheduling": True},
    "chunks": {"max_num_batched_tokens": 24},
    "overlapping chunks": {"max_num_batched_tokens": 24, "async_scheduling": True},
    "preemption": LITTLE_CACHE,
    "overlapping preemption": LITTLE_CACHE | {"async_scheduling": True},
    "few rows": {"max_num_seqs": 5},
    "many drafts": {"num_speculative_tokens": 64},
}
QUICK = ("alone", "overlapping preemption")


@pytest.mark.parametrize("way", [pytest.param(w, marks=() if w in QUICK else pytest.mark.wide) for w in OPTIONS])
def test_tokens_and_log_probabilities_are_those_without_drafts(way: str, expected: Answers) -> None:
    with tiny(**OPTIONS[way]) as engine:
        assert answers(engine) == expected
        stats = engine.core.stats()
        assert bool(stats.preemptions) == ("preemption" in way)
        assert stats.kv_blocks_used == 0


@pytest.mark.wide
def test_so_they_are_in_stages(expected: Answers) -> None:
    with in_stages() as engine:
        assert answers(engine) == expected


@pytest.mark.parametrize(
    ("asynchronous", "every"),
    [pytest.param(True, 17), *(pytest.param(each, 1, marks=pytest.mark.wide) for each in (False, True))],
)
def test_answers_go_on_from_any_split(asynchronous: bool, every: int, expected: Answers) -> None:
    splits = {
        f"{name}/{choice}/{at}": {choice: tuple(tokens[:at])}
        for (name, choice), (tokens, _, _) in expected.items()
        for at in range(1, len(tokens), every)
    }
    with tiny(async_scheduling=asynchronous, max_num_seqs=64) as engine:
        for (split, choice), got in answers(engine, splits).items():
            name, _, at = split.split("/")
            tokens, logprobs, finish = expected[name, choice]
            assert got == (tokens[int(at) :], logprobs[int(at) :], finish), split


@pytest.mark.parametrize("count", [1, pytest.param(16, marks=pytest.mark.wide)])
def test_steps_saved(count: int) -> None:
    """One answer, and many at a time, of a schema most of which is fixed."""
    steps, rows = {}, {}
    for drafts in (0, 8):
        with tiny(num_speculative_tokens=drafts) as engine:
            names = [str(serial) for serial in range(count)]
            params = {name: replace(RANDOM, seed=int(name)) for name in names}
            run(engine, dict.fromkeys(names, PROMPTS["random"]), params)
            stats = engine.core.stats()
            steps[drafts], rows[drafts] = stats.steps, stats.computed_tokens
    print(f"{count} answers: {steps[0]} steps without drafts, {steps[8]} with them; {rows[0]} and {rows[8]} rows")
    assert steps[8] <= 0.45 * steps[0]
    assert rows[8] == rows[0], "a forced token is never wrong"
