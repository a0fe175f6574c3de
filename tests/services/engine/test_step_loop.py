"""The thread that computes: what its failure comes to."""

from __future__ import annotations

import asyncio

import pytest

from engine_core.config import CacheSize, EngineConfig, SchedulerConfig
from engine_core.engine import EngineCore
from engine_core.errors import StandstillError
from engine_core.scheduling import Scheduler
from services.engine.step_loop import StepLoop
from tests.engine_core.scheduling.checked_executor import CheckedExecutor, model_spec
from tests.engine_core.scheduling.harness import make_request


def test_an_engine_whose_scheduler_stands_still_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8)
    executor = CheckedExecutor(model_spec(), CacheSize(32, 4, 1), limits)
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)

    async def until_it_fails() -> BaseException:
        failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        loop = StepLoop(
            EngineCore(EngineConfig(scheduler=limits), executor),
            asyncio.get_running_loop(),
            report=lambda report: None,
            failed=failure.set_result,
        )
        loop.start()
        loop.add("a", make_request("a"))
        try:
            return await asyncio.wait_for(failure, 30)
        finally:
            assert loop.stop(30)

    assert isinstance(asyncio.run(until_it_fails()), StandstillError)
