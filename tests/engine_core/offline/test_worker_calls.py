"""What workers may be asked through ``LLM``, and what is refused before any worker is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.errors import ClosedError
from engine_core.llm import LLM
from engine_core.offline.worker_calls import METHODS, worker_arguments
from engine_core.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(checkpoint, dtype="float32", max_model_len=128, kv_cache_memory_bytes=4 << 20) as started:
        yield started


def test_a_method_of_the_worker_is_called_between_calls(llm: LLM) -> None:
    before = llm.generate([5, 6, 7], GREEDY)
    assert llm.collective_rpc("lacks_kernels") == [False]
    assert llm.collective_rpc("first_unsound_part", timeout=10) == [None]
    assert llm.collective_rpc("compile_grammar", kwargs={"grammar": "start: ("}) == [None]
    assert llm.generate([5, 6, 7], GREEDY) == before


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (("_new_batch",), ValueError, "^a worker has no public method '_new_batch'; expected one of .*lacks_kernels"),
        (("__init__",), ValueError, "^a worker has no public method '__init__'; expected one of "),
        (("takes_one_step",), ValueError, "^a worker has no public method 'takes_one_step'"),
        (("rank",), ValueError, "^a worker has no public method 'rank'"),
        ((len,), TypeError, "^method is of type builtin_function_or_method; expected the name of a method"),
        (("profile", None, (1,)), TypeError, "^profile: too many positional arguments; its arguments are none"),
        (("commit", None, (1,)), TypeError, "^commit: missing a required argument: 'sampled'; .* are step_id, sampled"),
        (("commit", None, (), {"x": 1}), TypeError, "^commit: "),
        (("profile", "1"), TypeError, "^timeout is of type str; expected seconds or None"),
        (("profile", 0), ValueError, "^timeout is 0; expected seconds above 0, or None"),
        (("profile", float("nan")), ValueError, "^timeout is nan; expected seconds above 0, or None"),
    ],
)
def test_what_no_worker_can_be_asked_is_refused(
    llm: LLM, call: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        llm.collective_rpc(*call)
    assert len(llm.generate([5, 6, 7], GREEDY)) == 1


def test_arguments_come_in_the_order_of_the_method() -> None:
    assert worker_arguments("commit", None, (1,), {"sampled": 2}) == (1, 2)
    assert worker_arguments("commit", None, (), {"sampled": 2, "step_id": 1}) == (1, 2)
    assert {"profile", "load_model", "close"} < METHODS.keys()


def test_a_closed_one_calls_no_worker(checkpoint: Path) -> None:
    llm = LLM(checkpoint, dtype="float32", max_model_len=64, kv_cache_memory_bytes=4 << 20)
    llm.close()
    with pytest.raises(ClosedError):
        llm.collective_rpc("lacks_kernels")
    with pytest.raises(ClosedError):
        llm.reset_prefix_cache()
