"""What an engine tells of its queue: to those whom it refuses, when to come again; to an autoscaler, how long it is.

And requests that wait for their grammars before they reach the core: whatever ends them meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from types import SimpleNamespace

import pytest
from ringline.engine.v1 import engine_pb2

from engine_core.errors import InvalidRequestError, QueueFullError
from engine_core.request import Request, SamplingParams
from engine_core.scheduling.stats import SchedulerStats
from engine_core.step import SequenceOutput
from services.engine.async_engine import AsyncEngine
from services.engine.engine_messages import response_of
from services.engine.grammar_queue import EngineRequest
from services.engine.step_loop import StepReport
from services.ring.errors import Code, Refused, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from tests.services.ring.attach_harness import submission
from text_core.grammar.constraints import Grammar
from text_core.grammar.grammar_text import grammar_of
from text_core.grammar.lark import literal
from text_core.grammar.limits import WRITTEN_GRAMMAR


class RecordingRegistry:
    """In the place of the attach registry."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def refuse(self, core_id: str, status: Status) -> None:
        self.statuses.append(status)


@pytest.mark.parametrize(("waited", "expected"), [(None, 1000), (8.0, 4000), (0.001, 100), (1e6, 30_000)])
def test_it_is_told_by_how_long_the_request_waited_that_was_begun_last(waited: float | None, expected: int) -> None:
    engine = AsyncEngine(orphan_grace=1.0, max_ledgers=1)
    engine.registry = registry = RecordingRegistry()
    if waited is not None:
        engine.report(StepReport([SequenceOutput("a", 0, 0, [], [], queue_seconds=waited)]))
    engine.report(StepReport([], refused=[("b", QueueFullError("full"))] * 50))
    told = [status.retry_after_ms for status in registry.statuses]
    assert all(expected <= one <= 1.25 * expected for one in told)
    assert len(set(told)) > 1


def test_those_for_whom_there_is_no_memory_are_told_the_same() -> None:
    engine, peer = AsyncEngine(orphan_grace=1.0, max_ledgers=0), PeerId("p", 1)
    engine.report(StepReport([SequenceOutput("a", 0, 0, [], [], queue_seconds=8.0)]))
    engine.attach(peer)
    with pytest.raises(Refused) as refusal:
        engine.registry.submit(peer, submission())
    assert refusal.value.status.retry_after_ms is not None
    assert 4000 <= refusal.value.status.retry_after_ms <= 5000


def test_requests_that_wait_are_counted_once_whatever_choices_they_have() -> None:
    engine = AsyncEngine(orphan_grace=1.0, max_ledgers=0)
    values = {"running_seqs": 7, "waiting_reqs": 2, "returning_reqs": 1, "waiting_seqs": 300, "kv_blocks": 1}
    stats = SchedulerStats(**{field.name: values.get(field.name, 0) for field in fields(SchedulerStats)})
    engine.step_loop = SimpleNamespace(stats=stats, steps=0)
    assert engine.metrics.registry.get_sample_value("vllm:num_requests_waiting", {"model_name": ""}) == 3


class RecordingLoop:
    """In the place of the step loop."""

    def __init__(self) -> None:
        self.added: dict[str, Request] = {}
        self.cancelled: list[tuple[str, int | None]] = []

    def add(self, core_id: str, request: Request) -> None:
        self.added[core_id] = request

    def cancel(self, core_id: str, choice: int | None) -> bool:
        self.cancelled.append((core_id, choice))
        return True


class Constrained:
    """An engine whose grammars are compiled when ``go`` is set, with a peer that reads what it is told."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.engine = AsyncEngine(orphan_grace=0.0, max_ledgers=10)
        self.loop = self.engine.step_loop = RecordingLoop()
        self.engine.use_grammars(self.compile, literal)
        self.peer = PeerId("p", 1)
        self.waker = self.engine.attach(self.peer)

    def compile(self, grammar: str) -> None:
        assert self.go.wait(10)
        if "bad" in grammar:
            raise InvalidRequestError("grammar", "is bad")

    def submit(self, epoch: int = 1, text: str = "fine", deadline: float | None = None) -> None:
        core = Request("1-1", (1, 2), SamplingParams(n=2, max_tokens=4), deadline=deadline)
        request = EngineRequest(core, partial(grammar_of, Grammar(f'start: "{text}"')))
        self.engine.registry.submit(
            self.peer, submission("1-1", epoch, choices={0: (), 1: ()}, core_request=request), in_reply_to=epoch
        )

    async def until(self, condition: Callable[[], object]) -> None:
        self.go.set()
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - it changes in callbacks of threads
                await asyncio.sleep(0.001)

    def frame(self) -> engine_pb2.AttachResponse:
        frame = self.waker.link.take()
        return engine_pb2.AttachResponse() if frame is None else response_of(frame)

    @property
    def quiet(self) -> bool:
        """Nothing is left of any request."""
        registry, grammars = self.engine.registry, self.engine.grammars
        return not (registry.num_ledgers or registry._in_core or grammars)


async def test_a_request_superseded_while_its_grammar_compiles_never_reaches_the_core() -> None:
    world = Constrained()
    world.submit(epoch=1)
    world.submit(epoch=2)
    await world.until(lambda: world.loop.added)
    [(core_id, request)] = world.loop.added.items()
    assert core_id.startswith("1-1@2#")
    assert request.params.grammar == f'{WRITTEN_GRAMMAR}\nstart: "fine"\n'
    assert not world.loop.cancelled


async def test_what_ends_while_it_waits_for_its_grammar_leaves_nothing_behind() -> None:
    world = Constrained()
    world.submit()
    world.engine.registry.stop(world.peer, "1-1", 1, 0, 1)  # there is no such position yet
    world.engine.registry.cancel(world.peer, "1-1", 1)
    assert [end.finish_reason for end in world.frame().outputs.finished] == [FinishReason.CANCELLED] * 2
    world.engine.registry.done(world.peer, "1-1", 1)
    assert world.quiet
    world.submit(epoch=2)
    world.engine.detach(world.waker)
    world.engine.registry.expire(time.monotonic() + 1)
    assert world.quiet, "it was an orphan"
    world.go.set()
    assert not world.loop.added


async def test_a_deadline_passes_while_a_request_waits_for_its_grammar() -> None:
    world = Constrained()
    world.submit(deadline=time.monotonic() + 0.01)
    async with asyncio.timeout(10):
        ends = world.frame().outputs.finished
        while not ends:
            await world.waker.event.wait()
            world.waker.event.clear()
            ends = world.frame().outputs.finished
    assert [end.finish_reason for end in ends] == [FinishReason.DEADLINE] * 2
    world.engine.registry.done(world.peer, "1-1", 1)
    world.go.set()
    assert world.quiet


async def test_a_grammar_that_cannot_be_used_is_a_refusal() -> None:
    world = Constrained()
    world.submit(text="bad")
    await world.until(lambda: world.quiet)
    [rejection] = world.frame().rejections
    assert (rejection.request_id, rejection.in_reply_to) == ("1-1", 1)
    assert rejection.status.message == "constraint: is bad"
    assert rejection.status.code == Code.INVALID_ARGUMENT


class Told:
    """An engine with one request, of which nothing was told yet, and the writer of its peer."""

    def __init__(self) -> None:
        self.engine, peer = AsyncEngine(orphan_grace=1.0, max_ledgers=1), PeerId("p", 1)
        self.engine.step_loop = self.loop = RecordingLoop()
        self.waker = self.engine.attach(peer)
        self.waker.link.take()
        self.waker.event.clear()
        request = EngineRequest(Request("1-1", (1, 2), SamplingParams(max_tokens=4)))
        self.engine.registry.submit(peer, submission("1-1", 1, core_request=request))
        self.engine.wake_soon()

    def frame(self) -> tuple[int, int]:
        """Openings and beginnings of the next frame."""
        frame = self.waker.link.take()
        assert frame is not None
        return len(frame.opened), len(frame.prefills)


async def test_an_idle_engine_tells_of_a_request_and_of_its_first_step_in_one_frame() -> None:
    told = Told()
    assert not told.waker.event.is_set()
    told.engine.starting(list(told.loop.added))
    assert told.waker.event.is_set()
    assert told.frame() == (1, 1)


async def test_a_busy_engine_tells_soon_of_a_request_that_waits() -> None:
    told = Told()
    async with asyncio.timeout(30):
        await told.waker.event.wait()
    assert told.frame() == (1, 0)
