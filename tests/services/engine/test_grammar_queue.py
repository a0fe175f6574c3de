"""Requests that wait for their grammars: what becomes of each, and that none holds up others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from engine_core.errors import ExecutorError, InvalidRequestError, RequestError
from engine_core.request import Request, SamplingParams
from services.engine import grammar_queue
from services.engine.grammar_queue import THREADS, EngineRequest, GrammarQueue
from services.ring.errors import Code, Status
from text_core.grammar.constraints import Constraint, Grammar, Regex
from text_core.grammar.grammar_text import grammar_of
from text_core.grammar.limits import WRITTEN_GRAMMAR


class Compiler:
    """A compiler whose slow grammars wait until they are let go."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.slow = threading.Event()

    def __call__(self, grammar: str) -> None:
        if "slow" in grammar:
            assert self.slow.wait(10)
        if "bad" in grammar:
            raise InvalidRequestError("grammar", "is bad")
        if "broken" in grammar:
            raise ValueError("no such thing")
        if "panic" in grammar:
            raise BaseException("as PyO3 raises panics")
        if "failed" in grammar:
            raise ExecutorError("a rank was lost")
        self.compiled.append(grammar)


class Owner:
    """Keeps what left the queue."""

    def __init__(self) -> None:
        self.ready: dict[str, tuple[Request, set[int]]] = {}
        self.refused: dict[str, RequestError | Status] = {}
        self.late: dict[str, Request] = {}

    def grammar_ready(self, core_id: str, request: Request, cancelled: set[int]) -> None:
        self.ready[core_id] = request, cancelled

    def grammar_refused(self, core_id: str, error: RequestError | Status) -> None:
        self.refused[core_id] = error

    def grammar_too_late(self, core_id: str, request: Request) -> None:
        self.late[core_id] = request


class World:
    def __init__(self) -> None:
        self.owner, self.compiler = Owner(), Compiler()
        self.seconds: list[float] = []
        self.queue = GrammarQueue(self.owner, self.compiler, observe=self.seconds.append)

    def add(self, core_id: str, text: str | Constraint, tenant: str = "", **fields: object) -> None:
        constraint = Grammar(f'start: "{text}"') if isinstance(text, str) else text
        request = replace(Request("r", (1, 2), SamplingParams(n=3, max_tokens=4), tenant=tenant), **fields)
        self.queue.add(core_id, EngineRequest(request, partial(grammar_of, constraint)))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - it changes in callbacks of threads
                await asyncio.sleep(0.001)


def run(scenario: Callable[[World], object]) -> None:
    async def main() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            world.compiler.slow.set()
            world.queue.close()

    asyncio.run(main())


def test_a_request_goes_on_with_its_grammar() -> None:
    async def scenario(world: World) -> None:
        world.add("a", "fine")
        world.add("b", Regex("[ab]+"))
        assert "a" in world.queue
        await world.until(lambda: len(world.owner.ready) == 2)
        assert world.owner.ready["a"][0].params.grammar == f'{WRITTEN_GRAMMAR}\nstart: "fine"\n'
        assert world.owner.ready["b"][0].params.grammar in world.compiler.compiled
        assert len(world.queue) == 0
        assert len(world.seconds) == 2

    run(scenario)


def test_what_cannot_be_compiled_is_refused() -> None:
    async def scenario(world: World) -> None:
        world.add("bad", "bad")
        world.add("form", Regex("(?=x)"))
        world.add("broken", "broken")
        await world.until(lambda: len(world.owner.refused) == 3)
        bad, form, broken = (world.owner.refused[name] for name in ("bad", "form", "broken"))
        assert isinstance(bad, InvalidRequestError)
        assert bad.field == "grammar"
        assert isinstance(form, InvalidRequestError)
        assert form.field == "constraint.regex"
        assert isinstance(broken, Status)
        assert broken.code is Code.INTERNAL

    run(scenario)


def test_no_failure_leaves_a_request_behind() -> None:
    async def scenario(world: World) -> None:
        world.add("panic", "panic")
        world.add("failed", "failed")
        await world.until(lambda: len(world.owner.refused) == 2)
        panic, failed = world.owner.refused["panic"], world.owner.refused["failed"]
        assert isinstance(panic, Status)
        assert panic.code is Code.INTERNAL
        assert isinstance(failed, Status)
        assert failed.code is Code.UNAVAILABLE  # so that its processor tries another engine
        assert not len(world.queue)

    run(scenario)


def test_one_tenants_slow_grammars_hold_up_no_other_tenant() -> None:
    async def scenario(world: World) -> None:
        for number in range(20):
            world.add(f"slow {number}", f"slow {number}", tenant="a")
        world.add("quick", "quick", tenant="b")
        await world.until(lambda: "quick" in world.owner.ready)
        assert len(world.queue) == 20
        world.compiler.slow.set()
        await world.until(lambda: len(world.owner.ready) == 21)

    run(scenario)


def test_a_cancelled_request_is_gone_and_a_cancelled_choice_is_remembered() -> None:
    async def scenario(world: World) -> None:
        world.add("begun", "slow")
        world.add("a", "slow a")
        for number in range(THREADS):
            world.add(f"waits {number}", "slow b")
        assert world.queue.cancel("a", 1)
        assert not world.queue.cancel("begun", None)
        assert not world.queue.cancel("waits 3", None)
        assert "begun" not in world.queue
        world.add("begun", "again")  # a name is never used again, but an outcome must not reach another request
        assert not world.queue.cancel("begun", None)
        world.compiler.slow.set()
        await world.until(lambda: not world.queue)
        assert sorted(world.owner.ready) == ["a", "waits 0", "waits 1", "waits 2"]
        assert world.owner.ready["a"][1] == {1}

    run(scenario)


def test_a_deadline_ends_a_request_while_it_waits() -> None:
    async def scenario(world: World) -> None:
        world.add("a", "slow", deadline=time.monotonic() + 0.01)
        await world.until(lambda: world.owner.late)
        assert world.owner.late["a"].deadline is not None
        world.compiler.slow.set()
        await world.until(lambda: world.seconds)
        assert not world.owner.ready

    run(scenario)


def test_a_bounded_number_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_queue, "MAX_WAITING", 6)

    async def scenario(world: World) -> None:
        for number in range(4):
            world.add(f"a {number}", "slow", tenant="a")
        refusal = world.owner.refused["a 3"]
        assert isinstance(refusal, Status)
        assert refusal.code is Code.RESOURCE_EXHAUSTED
        assert refusal.retry_after_ms
        world.add("b", "quick", tenant="b")
        await world.until(lambda: "b" in world.owner.ready)

    run(scenario)
