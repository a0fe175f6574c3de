"""The step loop: how it fails, and what waits for it while a step takes long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine_core.config import EngineConfig, SchedulerConfig
from engine_core.engine import EngineCore
from engine_core.errors import StandstillError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.scheduling import Scheduler
from engine_core.step import StepPlan
from services.engine.async_engine import AsyncEngine
from services.engine.grammar_queue import EngineRequest
from services.engine.step_loop import MAX_CALLS, Inbox, RequestCommands, StepLoop, TooManyCalls
from services.ring.errors import Code, Refused
from services.ring.identity import PeerId
from tests.engine_core.scheduling.checked_executor import CheckedExecutor, Pending, model_spec
from tests.engine_core.scheduling.harness import make_request
from tests.services.ring.attach_harness import code_of, submission
from tests.waiting import until

LIMITS = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8)
ME = PeerId("p", 1)


def step_loop(failed: Callable[[BaseException], None]) -> StepLoop:
    core = EngineCore(EngineConfig(scheduler=LIMITS), CheckedExecutor(model_spec(), KVCacheConfig(32, 4, 1), LIMITS))
    return StepLoop(core, asyncio.get_running_loop(), report=lambda report: None, failed=failed)


async def test_an_engine_whose_scheduler_stands_still_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    loop = step_loop(failure.set_result)
    loop.start()
    loop.add("a", make_request("a"))
    assert isinstance(await asyncio.wait_for(failure, 30), StandstillError)
    assert loop.stop(30)


async def test_an_idle_engine_that_is_told_of_a_failure_ends_and_reports_it_once() -> None:
    failures: list[BaseException] = []
    reported = asyncio.Event()
    loop = step_loop(lambda error: (failures.append(error), reported.set()))  # type: ignore[func-returns-value]
    loop.start()
    first = RuntimeError("worker 1 died")
    for error in (first, RuntimeError("worker 2 died")):
        await asyncio.to_thread(loop.fail, error)
    async with asyncio.timeout(30):
        await reported.wait()
    assert await asyncio.to_thread(loop.stop, 30)
    await asyncio.sleep(0)
    assert failures == [first]


async def test_a_failure_is_reported_without_waiting_for_the_current_step() -> None:
    executor, failed = SlowExecutor(), asyncio.Event()
    core = EngineCore(EngineConfig(scheduler=LIMITS), executor)
    loop = StepLoop(core, asyncio.get_running_loop(), lambda report: None, lambda error: failed.set())
    loop.start()
    loop.add("a", make_request("a"))
    await asyncio.to_thread(executor.computing.wait, 60)
    loop.fail(RuntimeError("worker 1 died"))
    async with asyncio.timeout(30):
        await failed.wait()
    executor.may_end.set()
    assert await asyncio.to_thread(loop.stop, 30)


class SlowExecutor(CheckedExecutor):
    """A step does not end before ``may_end`` is set."""

    def __init__(self) -> None:
        super().__init__(model_spec(), KVCacheConfig(32, 4, 1), LIMITS)
        self.computing, self.may_end = threading.Event(), threading.Event()

    def submit(self, plan: StepPlan) -> Pending:
        self.computing.set()
        assert self.may_end.wait(60)
        return super().submit(plan)


@asynccontextmanager
async def slow_engine(max_ledgers: int) -> AsyncIterator[tuple[AsyncEngine, SlowExecutor]]:
    """An engine with the peer ``ME`` attached, whose step loop computes request ``1-1`` until ``may_end`` is set."""
    executor, running = SlowExecutor(), asyncio.get_running_loop()
    engine = AsyncEngine(orphan_grace=1.0, max_ledgers=max_ledgers)
    failure: asyncio.Future[BaseException] = running.create_future()
    core = EngineCore(EngineConfig(scheduler=LIMITS), executor)
    engine.step_loop = StepLoop(core, running, engine.report, failure.set_result, engine.starting)
    engine.step_loop.start()
    engine.attach(ME)
    submit(engine, "1-1")
    await asyncio.to_thread(executor.computing.wait, 60)
    yield engine, executor
    executor.may_end.set()
    assert await asyncio.to_thread(engine.step_loop.stop, 60)
    assert not failure.done()


def submit(engine: AsyncEngine, request_id: str) -> None:
    engine.registry.submit(ME, submission(request_id, core_request=EngineRequest(make_request(request_id))))


async def test_requests_that_come_and_go_while_a_step_takes_long_leave_nothing_behind() -> None:
    async with slow_engine(max_ledgers=2) as (engine, _):
        assert engine.step_loop is not None
        for index in range(1000):
            submit(engine, f"1-{index + 2}")
            engine.registry.done(ME, f"1-{index + 2}", 1)
        assert not engine.step_loop._inbox
        assert engine.step_loop.turn is not None


async def test_a_request_counts_until_the_core_has_let_go_of_it() -> None:
    async with slow_engine(max_ledgers=1) as (engine, executor):
        engine.registry.done(ME, "1-1", 1)
        assert engine.registry.num_ledgers == 0
        code, message = code_of(lambda: submit(engine, "1-2"))
        assert (code, "no longer computed" in message) == (Code.RESOURCE_EXHAUSTED, True)
        executor.may_end.set()
        async with asyncio.timeout(60):
            while True:
                try:
                    submit(engine, "1-2")
                    break
                except Refused:
                    await asyncio.sleep(0.01)


async def test_calls_that_wait_for_a_step_are_bounded() -> None:
    async with slow_engine(max_ledgers=1) as (engine, _):
        assert engine.step_loop is not None
        for _ in range(MAX_CALLS):
            engine.step_loop.call(EngineCore.reset_prefix_cache)
        with pytest.raises(TooManyCalls):
            engine.step_loop.call(EngineCore.reset_prefix_cache)


async def test_a_long_step_has_a_turn_of_its_own_and_an_idle_loop_none() -> None:
    async with slow_engine(max_ledgers=1) as (engine, executor):
        assert engine.step_loop is not None
        assert engine.step_loop.turn == engine.step_loop.turn == 1
        executor.may_end.set()
        await until(lambda: engine.step_loop is not None and engine.step_loop.turn is None)


async def test_what_an_operator_asked_for_is_not_taken_for_a_step_that_hangs() -> None:
    """Torch's profiler takes seconds to begin on a busy machine."""
    async with slow_engine(max_ledgers=1) as (engine, executor):
        loop = engine.step_loop
        assert loop is not None
        begun, may_end = threading.Event(), threading.Event()
        called = loop.call(lambda _: (begun.set(), may_end.wait(60)))
        executor.may_end.set()
        await asyncio.to_thread(begun.wait, 60)
        assert loop.turn is None
        may_end.set()
        await asyncio.wrap_future(called)


# What waits for the next step


def test_orders_are_taken_in_the_order_in_which_they_came() -> None:
    inbox, told = Inbox(), []
    first, second = make_request("a"), make_request("b")
    inbox.add("a", first)
    assert inbox.cancel("c", None)
    inbox.add("b", second)
    assert inbox.cancel("a", 1)
    inbox.call(lambda: told.append(1))
    assert inbox
    commands = inbox.take()
    assert list(commands.requests.items()) == [
        ("a", RequestCommands(first, {1})),
        ("c", RequestCommands(None, {None})),
        ("b", RequestCommands(second)),
    ]
    (call,) = commands.calls
    call()
    assert told == [1]
    assert not inbox
    assert not inbox.take()


def test_what_is_cancelled_before_it_was_taken_was_never_there() -> None:
    inbox = Inbox()
    for index in range(100):
        inbox.add(f"r{index}", make_request(f"r{index}"))
        for choice in range(10):
            assert inbox.cancel(f"r{index}", choice), "the rest of it is wanted"
        assert not inbox.cancel(f"r{index}", None)
    assert not inbox


def test_who_cancels_again_adds_nothing() -> None:
    inbox = Inbox()
    for _ in range(100):
        for choice in (0, 1):
            assert inbox.cancel("a", choice)
    assert inbox.take().requests == {"a": RequestCommands(None, {0, 1})}
    for choice in (0, None, 1, None):
        assert inbox.cancel("a", choice)
    assert inbox.take().requests == {"a": RequestCommands(None, {None})}


def test_calls_are_bounded() -> None:
    inbox = Inbox()
    for _ in range(MAX_CALLS):
        inbox.call(lambda: None)
    with pytest.raises(TooManyCalls):
        inbox.call(lambda: None)
    assert len(inbox.take().calls) == MAX_CALLS
    inbox.call(lambda: None)
