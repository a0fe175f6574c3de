"""The thread that computes: what its failure comes to, and what waits for it while a step takes long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine_core.config import CacheSize, EngineConfig, SchedulerConfig
from engine_core.engine import EngineCore
from engine_core.errors import StandstillError
from engine_core.scheduling import Scheduler
from engine_core.step import StepPlan
from services.engine.attach_links import AttachLinks
from services.engine.step_loop import MAX_CALLS, StepLoop, TooManyCalls
from services.ring.errors import Code, Refused
from services.ring.identity import PeerId
from tests.engine_core.scheduling.checked_executor import CheckedExecutor, Pending, model_spec
from tests.engine_core.scheduling.harness import make_request
from tests.services.process.test_run import wait_until
from tests.services.ring.attach_harness import code_of, submission

LIMITS = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8)
ME = PeerId("p", 1)


def test_an_engine_whose_scheduler_stands_still_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = CheckedExecutor(model_spec(), CacheSize(32, 4, 1), LIMITS)
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)

    async def until_it_fails() -> BaseException:
        failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        loop = StepLoop(
            EngineCore(EngineConfig(scheduler=LIMITS), executor),
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


class SlowExecutor(CheckedExecutor):
    """Its steps end when they may."""

    def __init__(self) -> None:
        super().__init__(model_spec(), CacheSize(32, 4, 1), LIMITS)
        self.computing, self.may_end = threading.Event(), threading.Event()

    def submit(self, plan: StepPlan) -> Pending:
        self.computing.set()
        assert self.may_end.wait(60)
        return super().submit(plan)


@asynccontextmanager
async def slow_hub(max_ledgers: int) -> AsyncIterator[tuple[AttachLinks, SlowExecutor]]:
    """A hub with a peer ``ME``, whose step loop computes a request ``first``; its step takes as long as one lets it."""
    executor, running = SlowExecutor(), asyncio.get_running_loop()
    hub = AttachLinks(orphan_grace=1.0, max_ledgers=max_ledgers)
    failure: asyncio.Future[BaseException] = running.create_future()
    core = EngineCore(EngineConfig(scheduler=LIMITS), executor)
    hub.step_loop = StepLoop(core, running, hub.report, failure.set_result, hub.starting)
    hub.step_loop.start()
    hub.attach(ME)
    submit(hub, "1-1")
    await asyncio.to_thread(executor.computing.wait, 60)
    yield hub, executor
    executor.may_end.set()
    assert await asyncio.to_thread(hub.step_loop.stop, 60)
    assert not failure.done()


def submit(hub: AttachLinks, request_id: str) -> None:
    hub.switchboard.submit(ME, submission(request_id, order=make_request(request_id)))


async def test_requests_that_come_and_go_while_a_step_takes_long_leave_nothing_behind() -> None:
    async with slow_hub(max_ledgers=2) as (hub, _):
        assert hub.step_loop is not None
        for index in range(1000):
            submit(hub, f"1-{index + 2}")
            hub.switchboard.done(ME, f"1-{index + 2}", 1)
        assert not hub.step_loop._inbox
        assert hub.step_loop.turn is not None


async def test_a_request_counts_until_the_core_has_let_go_of_it() -> None:
    async with slow_hub(max_ledgers=1) as (hub, executor):
        hub.switchboard.done(ME, "1-1", 1)
        assert hub.switchboard.num_ledgers == 0
        code, message = code_of(lambda: submit(hub, "1-2"))
        assert (code, "just have" in message) == (Code.RESOURCE_EXHAUSTED, True)
        executor.may_end.set()
        async with asyncio.timeout(60):
            while True:
                try:
                    submit(hub, "1-2")
                    break
                except Refused:
                    await asyncio.sleep(0.01)


async def test_calls_that_wait_for_a_step_are_bounded() -> None:
    async with slow_hub(max_ledgers=1) as (hub, _):
        assert hub.step_loop is not None
        for _ in range(MAX_CALLS):
            hub.step_loop.call(EngineCore.reset_prefix_cache)
        with pytest.raises(TooManyCalls):
            hub.step_loop.call(EngineCore.reset_prefix_cache)


async def test_a_long_step_has_a_turn_of_its_own_and_an_idle_loop_none() -> None:
    async with slow_hub(max_ledgers=1) as (hub, executor):
        assert hub.step_loop is not None
        assert hub.step_loop.turn == hub.step_loop.turn == 1
        executor.may_end.set()
        await asyncio.to_thread(wait_until, lambda: hub.step_loop is not None and hub.step_loop.turn is None)


async def test_what_an_operator_asked_for_is_not_taken_for_a_step_that_hangs() -> None:
    """Torch's profiler takes seconds to begin on a busy machine."""
    async with slow_hub(max_ledgers=1) as (hub, executor):
        loop = hub.step_loop
        assert loop is not None
        begun, may_end = threading.Event(), threading.Event()
        called = loop.call(lambda _: (begun.set(), may_end.wait(60)))
        executor.may_end.set()
        await asyncio.to_thread(begun.wait, 60)
        assert loop.turn is None
        may_end.set()
        await asyncio.wrap_future(called)
