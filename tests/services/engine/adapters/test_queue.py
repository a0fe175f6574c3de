"""Requests that wait for their adapters: each goes on or ends, once, and no bound is exceeded, whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.errors import AdapterError, ExecutorError
from engine_core.lora.schedule import AdapterSchedule
from engine_core.pooling.params import PoolingRequest
from engine_core.request import Request, SamplingParams
from services.engine.adapters import queue as module
from services.engine.adapters.queue import THREADS, AdapterQueue
from services.engine.adapters.registry import Generation
from services.ring.errors import Code, Reason, Status
from tests.services.engine.adapters.adapter_files import adapter_file

MAX_LORAS, MAX_LOADED, MAX_BYTES = 2, 3, 35
SIZES = {"a": 10, "b": 10, "c": 10, "d": 20, "huge": 36}
ADAPTERS = {name: Generation(name, adapter_file(name, size), f"/{name}") for name, size in SIZES.items()}


class Threads:
    """In place of the queue's: work is done when a test says so, the first ``THREADS`` in any order."""

    def __init__(self) -> None:
        self.work: list[tuple[Future, Callable[[], Any]]] = []

    def submit(self, function: Callable[[], Any]) -> Future:
        future: Future = Future()
        self.work.append((future, function))
        return future

    def run(self, which: int) -> None:
        future, function = self.work.pop(which % min(THREADS, len(self.work)))
        future.set_result(function())


class World:
    """An engine in which the adapters of requests that compute must be loaded."""

    def __init__(self, max_waiting: int = 1000) -> None:
        self.loaded: dict[int, str] = {}
        """Adapter id to digest, as the executor has it."""
        self.failures: list[BaseException] = []
        """What the next loads raise."""
        self.running: dict[str, tuple[Request | PoolingRequest, set[int]]] = {}
        self.ends: Counter[str] = Counter()
        """How often each request has left the queue, by its core id."""
        self.refused: dict[str, Status] = {}
        self.late: list[str] = []
        self.told: dict[str, bool] = {}
        self.seconds: list[float] = []
        self.failed: list[str] = []
        self.added = 0
        self.queue = AdapterQueue(
            self,
            self,
            AdapterSchedule(MAX_LORAS, MAX_LOADED, MAX_BYTES),
            max_active=MAX_LORAS,
            max_bytes=MAX_BYTES,
            max_waiting=max_waiting,
            observe=self.seconds.append,
        )
        self.queue._pool = self.threads = Threads()

    # The executor

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        if self.failures:
            raise self.failures.pop()
        assert adapter_id not in self.loaded
        assert adapter_file(path.removeprefix("/")).digest == digest
        self.loaded[adapter_id] = digest
        assert len(self.loaded) <= MAX_LOADED
        assert sum(ADAPTERS[name].file.nbytes for name in ADAPTERS if self.is_loaded(name)) <= MAX_BYTES

    def unload_adapter(self, adapter_id: int) -> None:
        assert adapter_id not in {request.adapter.adapter_id for request, _ in self.running.values()}
        del self.loaded[adapter_id]

    def is_loaded(self, name: str) -> bool:
        return ADAPTERS[name].file.digest in self.loaded.values()

    # The queue's owner

    def adapter_ready(self, core_id: str, request: Request | PoolingRequest, cancelled: set[int]) -> None:
        assert request.adapter is not None
        assert self.loaded[request.adapter.adapter_id] == request.adapter.digest
        self.ends[core_id] += 1
        self.running[core_id] = request, cancelled
        assert len({request.adapter.digest for request, _ in self.running.values()}) <= MAX_LORAS

    def adapter_refused(self, core_id: str, status: Status) -> None:
        self.ends[core_id] += 1
        self.refused[core_id] = status
        self.queue.end(core_id)  # as the attach registry does

    def adapter_too_late(self, core_id: str, request: Request | PoolingRequest) -> None:
        self.ends[core_id] += 1
        self.late.append(core_id)
        self.queue.end(core_id)

    def adapter_moved(self, digest: str, *, loaded: bool) -> None:
        self.told[digest] = loaded

    def adapter_failed(self, generation: Generation) -> None:
        self.failed.append(generation.name)

    # What a test does

    def add(self, name: str, tenant: str = "", deadline: float | None = None) -> str:
        self.added += 1
        core_id = f"r{self.added}"
        core = Request(core_id, (1, 2), SamplingParams(n=2, max_tokens=4), tenant=tenant, deadline=deadline)
        self.queue.add(core_id, core, ADAPTERS[name])
        return core_id

    async def load(self, which: int = 0) -> None:
        self.threads.run(which)
        for _ in range(3):
            await asyncio.sleep(0)

    def end(self, which: int) -> None:
        core_id = list(self.running)[which % len(self.running)]
        del self.running[core_id]
        self.queue.end(core_id)

    def waiting(self, which: int) -> str:
        return list(self.queue._waiting)[which % len(self.queue)]

    async def settle(self) -> None:
        """Everything goes well from now on."""
        self.failures.clear()
        while self.threads.work or self.running:
            while self.threads.work:
                await self.load()
            if self.running:
                self.end(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(list(SIZES)), st.sampled_from(["", "t", "u"])),
        st.tuples(st.just("load"), st.integers(0, THREADS - 1)),
        st.tuples(
            st.just("fail"), st.sampled_from([AdapterError("gone"), ExecutorError("lost"), ValueError(), SystemExit()])
        ),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.sampled_from([None, 0, 1])),
        st.tuples(st.just("late"), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([4, 1000]))
@settings(max_examples=60)
def test_each_request_goes_on_or_ends_once_within_the_bounds(steps: list[tuple], max_waiting: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "log", MagicMock())  # tracebacks take most of the time
        asyncio.run(follow(World(max_waiting), steps))


async def follow(world: World, steps: list[tuple]) -> None:
    queue = world.queue
    for step, *how in steps:
        match step, *how:
            case "add", name, tenant:
                world.add(name, tenant)
            case "load", which if world.threads.work:
                await world.load(which)
            case "fail", error:
                world.failures.append(error)
            case "end", which if world.running:
                world.end(which)
            case "cancel", which, choice if len(queue):
                core_id = world.waiting(which)
                assert queue.cancel(core_id, choice) == (choice is not None)
                if choice is None:
                    world.ends[core_id] += 1
            case "late", which if len(queue):
                queue._too_late(queue._waiting[world.waiting(which)])
        told = {digest for digest, loaded in world.told.items() if loaded}
        assert told <= set(world.loaded.values())
        assert queue.names()[1] == sorted({each.generation.name for each in queue._waiting.values()})
    await world.settle()
    assert len(queue) == 0
    assert (queue._quota.total, queue._by_digest, queue._admitted) == (0, {}, {})
    assert (queue.num_active, queue.num_loaded) == (0, len(world.loaded))
    assert queue._digests == world.loaded
    assert all(world.ends[f"r{number + 1}"] == 1 for number in range(world.added))
    assert world.ends.total() == world.added


async def test_a_request_goes_on_with_its_adapter_when_that_is_loaded() -> None:
    world = World()
    first, second = world.add("a"), world.add("a")
    assert not world.running
    assert world.queue.cancel(second, 1)
    await world.load()
    assert not world.threads.work, "it is loaded once"
    assert set(world.running) == {first, second}
    request, cancelled = world.running[second]
    assert request.adapter.digest == ADAPTERS["a"].file.digest
    assert cancelled == {1}
    world.add("a")
    assert len(world.running) == 3, "it goes on at once"
    counts = world.queue.counts
    assert (counts.requests, counts.hits, counts.loads, len(world.seconds)) == (3, 1, 1, 1)
    assert world.queue.names() == (["a"], [])


async def test_requests_of_other_adapters_are_not_held_up_by_one_that_waits_for_room() -> None:
    world = World()
    world.add("a")
    world.add("b")
    while world.threads.work:
        await world.load()
    late = world.add("c")
    assert not world.threads.work
    assert world.queue.names() == (["a", "b"], ["c"])
    for _ in range(5):
        world.add("a")
    assert len(world.running) == 7
    world.end(1)
    await world.load()
    assert late in world.running


async def test_what_makes_room_is_told_and_unloaded_before_others_come() -> None:
    world = World()
    for name in "abc":
        world.add(name)
        await world.load()
        world.end(0)
    world.add("d")
    assert world.told[ADAPTERS["a"].file.digest] is False
    await world.load()
    assert [world.is_loaded(name) for name in "abcd"] == [False, False, True, True]
    assert world.queue.counts.evictions == 2


@pytest.mark.parametrize(
    ("failure", "code", "reason", "text"),
    [
        (AdapterError("the file ends early"), Code.FAILED_PRECONDITION, Reason.ADAPTER_GONE, "the file ends early"),
        (ExecutorError("a rank was lost"), Code.UNAVAILABLE, None, "a rank was lost"),
        (BaseException("as PyO3 raises panics"), Code.INTERNAL, None, "'a' cannot be loaded: BaseException"),
    ],
)
async def test_an_adapter_that_cannot_be_loaded_ends_its_requests_and_no_others(
    failure: BaseException, code: Code, reason: Reason | None, text: str
) -> None:
    world = World()
    first, other = world.add("a"), world.add("b")
    second = world.add("a")
    world.failures.append(failure)
    await world.load()
    await world.load()
    assert world.refused.keys() == {first, second}
    assert world.running.keys() == {other}
    for status in world.refused.values():
        assert (status.code, status.given_reason) == (code, reason)
        assert text in status.message
    assert world.failed == ["a"]
    third = world.add("a")
    await world.load()
    assert third in world.running, "it is tried again"


async def test_all_names_of_an_adapter_that_was_not_loaded_are_suspects() -> None:
    """The folder of another name may be sound, and processors were refused under that name, too."""
    world = World()
    twin = Generation("twin", ADAPTERS["a"].file, "/a")
    world.add("a")
    world.queue.add("twin", Request("twin", (1, 2), SamplingParams(max_tokens=4)), twin)
    world.failures.append(AdapterError("gone"))
    await world.load()
    assert world.failed == ["a", "twin"]


async def test_an_adapter_above_the_memory_is_refused_with_the_numbers() -> None:
    world = World()
    [core_id] = [world.add("huge")]
    assert world.refused[core_id].message.startswith("adapter: 'huge' takes 36 bytes; this engine has 35 for adapters")


async def test_a_deadline_passes_while_a_request_waits_for_its_adapter() -> None:
    world = World()
    core_id = world.add("a", deadline=time.monotonic() + 0.01)
    async with asyncio.timeout(10):
        while not world.late:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert world.late == [core_id]
    await world.load()
    assert not world.running
    assert world.is_loaded("a"), "for those that come later"


async def test_one_tenant_cannot_take_all_places() -> None:
    world = World(max_waiting=8)
    for _ in range(10):
        world.add("a", "greedy")
    assert len(world.queue) == 4
    assert len(world.refused) == 6
    status = next(iter(world.refused.values()))
    assert (status.code, status.reason) == (Code.RESOURCE_EXHAUSTED, Reason.QUOTA)
    modest = world.add("b", "modest")
    assert modest not in world.refused
    await world.load()
    joined = world.add("a", "greedy")
    assert joined in world.running, "it need not wait, so it needs no place"
