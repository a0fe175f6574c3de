"""Grammars in a whole engine: the same tokens however steps are cut and shared, drafts of results, and failures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine_core.engine import EngineCore
from engine_core.errors import InvalidRequestError
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.sampling import grammar_mask
from engine_core.startup import StartedEngine, start_executor
from engine_core.step import NewSequence, StepPlan, StepResult

from .engines import BLOCK_BYTES, Outcome, run, started
from .executor.threaded_workers import ThreadedWorkers
from .structured_output.grammars import ANSWER, EOS, PERSON, ids_of, save_model_with_tokenizer, text_of

PROMPT = list(range(5, 25))
"""More than some steps have rows: then nothing is sampled."""
GREEDY = SamplingParams(temperature=0.0, grammar=PERSON, max_tokens=60)
PARAMS = {
    "greedy": GREEDY,
    "random": replace(GREEDY, temperature=1.0, seed=3, logprobs=2),
    "choices": replace(GREEDY, temperature=1.5, seed=5, n=3, top_p=0.9),
    "penalties": replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.5, min_tokens=50),
    "free": SamplingParams(temperature=0.0, max_tokens=30),
    "bad words": replace(GREEDY, bad_words_token_ids=tuple((token,) for token in ids_of("aeiou"))),
}
SHAPE = re.compile(r'\{"name": "[a-z]{1,8}", "age": [0-9]{1,3}\}')


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model_with_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[StartedEngine]:
    with started(model, num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: StartedEngine) -> dict[tuple[str, int], Outcome]:
    """Each request by itself."""
    found = {key: each for name in PARAMS for key, each in run(engine, {name: PROMPT}, PARAMS).items()}
    assert len(found) == 8
    for (name, _), outcome in found.items():
        assert name == "free" or (SHAPE.fullmatch(text_of(outcome.token_ids)) and EOS in outcome.token_ids)
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"async_scheduling": True, "max_num_batched_tokens": 16, "max_num_seqs": 3, "num_speculative_tokens": 6},
            marks=pytest.mark.wide,
        ),
        {"kv_cache_memory_bytes": 10 * BLOCK_BYTES, "max_model_len": 96, "num_speculative_tokens": 6},
        {"attention_backend": "torch"},
    ],
    ids=["overlapping steps of few rows", "little cache", "torch"],
)
def test_whatever_shares_a_step(
    options: dict[str, object], model: Path, expected: dict[tuple[str, int], Outcome]
) -> None:
    with started(model, num_threads=1, **options) as engine:
        outcomes = run(engine, dict.fromkeys(PARAMS, PROMPT), PARAMS)
    for key, outcome in outcomes.items():
        assert outcome.token_ids == expected[key].token_ids, key


@pytest.mark.parametrize("stages", [1, 2])
def test_several_ranks(stages: int, model: Path, expected: dict[tuple[str, int], Outcome]) -> None:
    """Two stages have the whole head on one rank; two ranks of a stage have parts of it, and their logits."""
    sizes = {"pipeline_parallel_size": stages, "tensor_parallel_size": 3 - stages}
    config = configure(model=str(model), dtype="float32", kv_cache_memory_bytes=8 << 20, num_threads=1, **sizes)
    executor = start_executor(ThreadedWorkers(config), StartupProgress())
    try:
        engine = StartedEngine(EngineCore(config, executor), executor)
        outcomes = run(engine, dict.fromkeys(PARAMS, PROMPT), PARAMS)
    finally:
        executor.close()
    assert {key: each.token_ids for key, each in outcomes.items()} == {
        key: each.token_ids for key, each in expected.items()
    }


@pytest.mark.wide
def test_an_answer_goes_on_from_any_of_its_tokens(
    engine: StartedEngine, expected: dict[tuple[str, int], Outcome]
) -> None:
    token_ids = expected["random", 0].token_ids
    names = [str(known) for known in range(1, len(token_ids))]
    resume = {name: {0: tuple(token_ids[: int(name)])} for name in names}
    outcomes = run(engine, dict.fromkeys(names, PROMPT), dict.fromkeys(names, PARAMS["random"]), resume)
    assert all(outcomes[name, 0].token_ids == token_ids[int(name) :] for name in names)


def step(engine: StartedEngine, plan: StepPlan) -> StepResult:
    return engine.executor.submit(plan).result()


def begin(seq_id: int, output: list[int], params: SamplingParams) -> NewSequence:
    return NewSequence(seq_id, 0, PROMPT + output, len(PROMPT), 0, [[3 * seq_id + block for block in range(3)]], params)


def test_a_result_says_which_grammars_took_long(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = [begin(0, [], GREEDY), begin(1, [], replace(GREEDY, grammar=None))]
    plan = StepPlan(0, [], new, [0, 1], [len(each.token_ids) for each in new], [True] * 2, {})
    with started(model, num_threads=1) as engine:
        monkeypatch.setattr(grammar_mask.time, "thread_time", itertools.count().__next__)
        assert list(step(engine, plan).grammar_seconds) == [0]


def test_a_result_brings_what_the_grammar_forces(model: Path) -> None:
    """After the tokens that were accepted, as drafts were right or wrong; and nothing where it forces nothing."""
    ids, first = ids_of(ANSWER), ids_of('{"name": "')
    with started(model, num_speculative_tokens=4, num_threads=1) as engine:
        new = [begin(0, [], GREEDY), begin(1, ids, GREEDY), begin(2, [], replace(GREEDY, grammar=None))]
        counts = [len(each.token_ids) for each in new]
        result = step(engine, StepPlan(0, [], new, [0, 1, 2], counts, [True] * 3, {}))
        assert result.token_ids[:2] == [[first[0]], [EOS]]
        assert result.draft_token_ids == {0: first[1:5]}
        drafts = {0: [*first[1:4], 300]}  # the last one is wrong
        result = step(engine, StepPlan(1, [1], [], [0, 2], [5, 1], [True] * 2, {}, drafts))
        assert result.token_ids[0] == first[1:5]
        assert result.draft_token_ids == {0: first[5:9]}
        again = [begin(3, first[:2], GREEDY)]
        result = step(engine, StepPlan(2, [0, 2], again, [3], [len(again[0].token_ids)], [True], {}))
        assert result.draft_token_ids == {3: first[3:7]}
    assert result.failed == {}


def test_a_grammar_that_fails_takes_the_tokens_from_there_on(model: Path) -> None:
    a, b = ids_of("a")[0], ids_of("b")[0]
    dead_end = replace(GREEDY, grammar='start: "a" "b" X\nX: /b/ & /c/', logprobs=1)
    with started(model, num_speculative_tokens=4, num_threads=1) as engine:
        new = [
            begin(0, [], dead_end),
            begin(1, [b], GREEDY),  # resumed with tokens that are not in its grammar
            begin(2, [], replace(GREEDY, grammar="start: (")),
            begin(3, [], GREEDY),
        ]
        counts = [len(each.token_ids) for each in new]
        result = step(engine, StepPlan(0, [], new, [0, 1, 2, 3], counts, [True] * 4, {}))
        assert result.token_ids == [[a], [], [], [ids_of("{")[0]]]
        assert set(result.failed) == {1, 2}
        assert "does not admit token" in result.failed[1].problem
        assert "Expected token" in result.failed[2].problem
        result = step(engine, StepPlan(1, [1, 2], [], [0, 3], [2, 1], [True] * 2, {}, {0: [b]}))
        assert result.token_ids[0] == [b]
        assert len(result.logprobs[0]) == 1
        assert "dead end" in result.failed[0].problem


def test_grammars_that_are_refused(engine: StartedEngine) -> None:
    both = replace(GREEDY, allowed_token_ids=(1, 2))
    with pytest.raises(InvalidRequestError, match="allowed_token_ids: is given together with a grammar"):
        engine.core.add(Request("both", tuple(PROMPT), both))
    with pytest.raises(InvalidRequestError, match=r"grammar: .*Expected token"):
        engine.executor.compile_grammar("start: (")
    with pytest.raises(InvalidRequestError, match="grammar: is 5, of type int"):
        engine.core.add(Request("type", tuple(PROMPT), replace(GREEDY, grammar=5)))  # type: ignore[arg-type]


def test_an_engine_without_a_tokenizer_has_no_grammars(engine: StartedEngine, model: Path, tmp_path: Path) -> None:
    """And its digest of numerics says nothing of the library that follows grammars."""
    for file in model.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).hardlink_to(file)
    with started(tmp_path, num_threads=1) as other:
        problem = "cannot be used here: .* has no tokenizer"
        with pytest.raises(InvalidRequestError, match=problem):
            other.executor.compile_grammar(PERSON)
        with pytest.raises(InvalidRequestError, match=problem):
            other.core.add(Request("a", tuple(PROMPT), GREEDY))
        assert other.executor.model_digest == engine.executor.model_digest
        assert other.executor.numerics != engine.executor.numerics
