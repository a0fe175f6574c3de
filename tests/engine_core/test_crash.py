"""A worker that raises while steps overlap: what was told until then is right, and another engine goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_core.errors import ExecutorError
from engine_core.request import Request, SamplingParams
from engine_core.step import StepPlan, StepResult
from engine_core.worker.model_runner import PendingStep
from engine_core.worker.worker import Worker
from tests.engine_core.engines import run, started

PROMPTS = {"greedy": [5, 6, 7], "random": list(range(10, 60)), "penalized": [100, 3], "short": [9, 9]}
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    "random": SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=20, ignore_eos=True),
    "penalized": SamplingParams(temperature=1.0, repetition_penalty=1.3, seed=4, max_tokens=20, ignore_eos=True),
    "short": SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
}
OPTIONS = {"async_scheduling": True, "max_num_seqs": 3, "max_num_batched_tokens": 16, "num_threads": 1}


class _Fails(PendingStep):
    """A step that a device takes, and does not compute."""

    def __init__(self, step: PendingStep) -> None:
        self.__dict__.update(step.__dict__)

    def result(self) -> StepResult:
        raise RuntimeError("device fault")


def _until_it_raises(model: Path, step: int, late: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Tokens told by an engine that fails at its ``step``-th step: at once, or when that is waited for."""
    launch, count = Worker.launch, 0

    def failing(worker: Worker, plan: StepPlan) -> PendingStep:
        nonlocal count
        count += 1
        if count < step:
            return launch(worker, plan)
        if not late:
            raise RuntimeError("device fault")
        return _Fails(launch(worker, plan))

    told: dict[str, list[int]] = {name: [] for name in PROMPTS}
    with started(model, **OPTIONS) as engine, monkeypatch.context() as patch:
        patch.setattr(Worker, "launch", failing)
        for name, prompt in PROMPTS.items():
            engine.core.add(Request(name, tuple(prompt), PARAMS[name]))

        def run_on() -> None:
            while engine.core.has_work():
                for output in engine.core.step():
                    told[output.request_id] += output.token_ids

        with pytest.raises(ExecutorError, match=r"failed: RuntimeError: device fault"):
            run_on()
        with pytest.raises(ExecutorError):
            engine.core.step()
    return told


@pytest.mark.parametrize("late", [False, True])
def test_another_engine_goes_on_with_the_same_tokens(
    checkpoint: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(checkpoint, **OPTIONS) as survivor:
        everything = {name: made.token_ids for (name, _), made in run(survivor, PROMPTS, PARAMS).items()}
        partly = 0
        for step in (1, 2, 5, 9, 14):
            told = _until_it_raises(checkpoint, step, late, monkeypatch)
            for name, tokens in told.items():
                assert tokens == everything[name][: len(tokens)]
            left = {name: prompt for name, prompt in PROMPTS.items() if told[name] != everything[name]}
            resume = {name: {0: tuple(told[name])} for name in left if told[name]}
            partly += len(resume)
            for (name, _), made in run(survivor, left, PARAMS, resume).items():
                assert told[name] + made.token_ids == everything[name]
            assert survivor.core.stats().kv_blocks_used == 0
        assert partly >= 5
