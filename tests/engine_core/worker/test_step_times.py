"""Times of steps: measured at the warm-up of an engine that speculates, and straight lines between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_core.executor.collective import CollectiveExecutor
from engine_core.speculation import ASSUMED_STEP_TIMES, StepTimes
from engine_core.worker import step_times
from engine_core.worker.step_times import StepTimer, measure_step_times

from ..engines import StageDetails, started

TINY = Path(__file__).parents[3] / "checkpoints" / "tiny"
SIZES = {"num_threads": 1, "max_model_len": 64, "max_num_seqs": 24}


def test_an_engine_that_speculates_measures_its_steps_and_says_so() -> None:
    said = StageDetails()
    with started(TINY, said=said, speculative_config='{"method": "ngram"}', **SIZES) as engine:
        assert isinstance(engine.executor, CollectiveExecutor)
        times = engine.executor.step_times
        worker = engine.executor.workers._worker  # type: ignore[attr-defined]
        assert len(worker._runner.batch) == 0
    assert times.rows == (1, 2, 4, 8, 16)
    assert times.draft_seconds == ()
    for seconds in (times.seconds, times.drafted_seconds):
        assert len(seconds) == 5
        assert list(seconds) == sorted(seconds)
        assert seconds[0] > 0
    assert "a step takes" in said.details["warm up"]
    with started(TINY, said=said, **SIZES) as engine:
        assert engine.executor.step_times is ASSUMED_STEP_TIMES
    assert "a step takes" not in said.details["warm up"]


def test_every_row_has_a_token_of_its_own_and_long_steps_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(TINY, **SIZES) as engine:
        worker = engine.executor.workers._worker  # type: ignore[attr-defined]
        batch, seen = worker._runner.batch, []

        def compute(plan: object) -> None:
            inputs = worker._runner._last
            worker._compute(plan)
            seen.append(worker._runner._last.inputs.input_ids.tolist())
            assert inputs is not worker._runner._last

        timer = StepTimer(worker._runner, worker.limits, compute)
        measure_step_times(timer.seconds, 24, proposes=False)
        rows = [each for each in seen if len(each) == 16]
        assert all(len(set(each)) > 12 for each in rows)
        monkeypatch.setattr(step_times, "_LONG", 0.0)
        assert measure_step_times(timer.seconds, 24, proposes=False).rows == (1, 2, 4, 8)
        assert len(batch) == 0


def test_disturbed_measurements_are_bounded_by_those_of_other_sizes() -> None:
    assert step_times._without_disturbance([1.0, 9.0, 1.2, 2.0]) == (1.0, 1.2, 1.2, 2.0)
    assert step_times._without_disturbance([1.0, 1.1, 1.2, 9.0]) == (1.0, 1.1, 1.2, 2.4)
    assert step_times._without_disturbance([]) == ()


def test_times_are_straight_lines_between_and_beyond_the_measured_ones() -> None:
    times = StepTimes((1, 2, 4), (1.0, 1.5, 2.0), (1.0, 3.0, 4.0), (0.1, 0.2, 0.2))
    assert [times.step(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 1.5, 1.75, 2.0, 3.0]
    assert [times.drafted(rows) for rows in (2, 3, 6)] == [3.0, 3.5, 5.0]
    assert [times.draft(count) for count in (0, 1, 2, 9)] == pytest.approx([0.0, 0.1, 0.2, 0.2])
    assert StepTimes((1,), (1.0,)).drafted(7) == 1.0
