"""Engines of every number of ranks, type of weights and kind of model answer as one process does, to the last bit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_core.distributed.rendezvous import Rendezvous, open_rendezvous
from engine_core.executor.ranks.workers import RankWorkers
from tests.engine_core.distributed.matrix import (
    DTYPES,
    MODELS,
    SIZES_OF_ENGINES,
    WITH_EXPERTS,
    Answers,
    Ranks,
    ask,
    differences,
    engine_of,
)
from tests.engine_core.models.tiny_models import make_model, save_model

IN_EVERY_RUN = {("qwen3-moe", "bfloat16"): [Ranks(2, 1, expert_parallel=True)]}
"""What ``make test`` asks; ``make test-distributed`` asks all the others."""
NO_EXPERTS = ("qwen3", "gemma2", "lfm3", "qwen3.5")


@dataclass(frozen=True)
class Case:
    model: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.model} {self.dtype}"

    def sizes(self) -> list[Ranks]:
        return SIZES_OF_ENGINES + ([] if self.model in NO_EXPERTS else WITH_EXPERTS)


@dataclass(frozen=True)
class Known:
    case: Case
    directory: Path
    answers: Answers
    """Of an engine in one process."""


CASES = [Case(model, dtype) for model in MODELS for dtype in DTYPES]


def cells() -> list[Any]:
    found = []
    for case in CASES:
        for ranks in case.sizes():
            always = ranks in IN_EVERY_RUN.get((case.model, case.dtype), [])
            marks = [] if always else [pytest.mark.distributed]
            found.append(pytest.param(case, ranks, marks=marks, id=f"{case} {ranks}"))
    return found


@pytest.fixture(scope="module")
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    case: Case = request.param
    directory = save_model(make_model(MODELS[case.model]), tmp_path_factory.mktemp(case.model))
    with engine_of(directory, case.dtype, None) as engine:
        answers = ask(engine)
    return Known(case, directory, answers)


def check(known: Known, ranks: Ranks, *, forked: bool = True) -> None:
    with engine_of(known.directory, known.case.dtype, ranks, forked=forked) as engine:
        assert differences(known.answers, ask(engine, known.answers)) == []


@pytest.mark.parametrize(("known", "ranks"), cells(), indirect=["known"])
def test_ranks_answer_as_one_process(known: Known, ranks: Ranks) -> None:
    """The processes are forked, so that they start at once."""
    check(known, ranks)


@pytest.mark.distributed
@pytest.mark.parametrize("known", [Case("gpt-oss", "int8")], ids=str, indirect=True)
@pytest.mark.parametrize("ranks", SIZES_OF_ENGINES, ids=str)
def test_so_do_processes_that_are_started_as_for_a_user(known: Known, ranks: Ranks) -> None:
    check(known, ranks, forked=False)


@pytest.mark.distributed
@pytest.mark.parametrize("known", [Case("gemma4", "bfloat16"), Case("qwen3", "int8")], ids=str, indirect=True)
@pytest.mark.parametrize("ranks", [Ranks(2, 1), Ranks(2, 2)], ids=str)
def test_so_do_ranks_whose_tensors_go_over_sockets(known: Known, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As between hosts: by gloo."""

    def rendezvous(self: RankWorkers, device: object) -> AbstractContextManager[Rendezvous]:
        return open_rendezvous("127.0.0.1", "gloo", ranks.pp)

    monkeypatch.setattr(RankWorkers, "rendezvous", rendezvous)
    check(known, ranks)
