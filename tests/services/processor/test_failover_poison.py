"""Only engines that die while they compute a request make it poison; drains, cuts, hangs and waiting do not."""

from __future__ import annotations

import time

import pytest

from services.ring.errors import Code
from services.ring.events import FinishReason
from services.ring.poison import MAX_CRASH_RESUBMITS, RETURN_GRACE, WAITING_FACTOR
from tests.services.processor.ring_requests import (
    ask,
    end,
    engine_says,
    events,
    expected,
    ids,
    processors_stream,
    route_of,
    settle,
    usage,
)
from tests.services.ring.ring_simulation import ORPHAN_GRACE, RingSimulation


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed: as many as the test says."""
    passed, begin = [0.0], time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begin + passed[0])
    return passed


def engine_dies_computing(world: RingSimulation, name: str = "engine-0") -> None:
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_engine(name)


def engine_dies_before_it_begins(world: RingSimulation) -> None:
    processors_stream(world).read_commands()
    assert world.engines["engine-0"].registry.num_ledgers == 1
    world.kill_engine("engine-0")


def test_a_request_survives_fewer_crashes_than_the_limit(world: RingSimulation, later: list[float]) -> None:
    world.ask(ask())
    for _ in range(MAX_CRASH_RESUBMITS - 1):
        engine_dies_computing(world)
        later[0] += 2 * RETURN_GRACE
        world.heal()
        settle(world, 1)
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH
    assert ids(world) == expected(20)


def test_a_poison_request_is_not_resubmitted(world: RingSimulation, later: list[float]) -> None:
    world.ask(ask())
    for _ in range(MAX_CRASH_RESUBMITS):
        engine_dies_computing(world)
        world.heal()
    settle(world)
    assert not events(world, "request_finished"), "the last one may have been cut off, and come back"
    assert not world.engines["engine-0"].registry.num_ledgers
    later[0] += 2 * RETURN_GRACE
    settle(world)
    assert end(world).error.code == Code.INTERNAL
    assert ids(world) == expected(len(ids(world)))
    assert usage(world).completion_tokens == len(ids(world)) > 0
    assert world.quiet


def test_a_request_that_merely_waited_is_resubmitted(world: RingSimulation, later: list[float]) -> None:
    world.ask(ask())
    for _ in range(WAITING_FACTOR * MAX_CRASH_RESUBMITS - 1):
        engine_dies_before_it_begins(world)
        later[0] += 2 * RETURN_GRACE
        world.heal()
        for stream in world.streams():
            stream.write()
            stream.read()
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH


def test_resubmits_of_a_waiting_request_are_bounded_too(world: RingSimulation) -> None:
    """What kills an engine before it can say what it begins would else do so for ever."""
    world.ask(ask())
    for _ in range(WAITING_FACTOR * MAX_CRASH_RESUBMITS):
        engine_dies_before_it_begins(world)
        world.heal()
        for stream in world.streams():
            stream.write()
            stream.read()
    assert end(world).error.code == Code.INTERNAL


def test_engines_that_come_back_had_not_died(wide: RingSimulation, later: list[float]) -> None:
    """As if the processor's own network were gone: whatever it tries, it loses."""
    live = wide.ask(ask(max_tokens=60))
    for _ in range(MAX_CRASH_RESUBMITS):
        wide.flow(tokens=1)
        wide.flow(tokens=1)
        wide.detach(processors_stream(wide, route_of(live).engine.name))
    later[0] += RETURN_GRACE / 2
    wide.heal()
    later[0] += RETURN_GRACE
    settle(wide)
    assert end(wide).finish_reason == FinishReason.LENGTH
    assert ids(wide) == expected(60)


def test_a_hang_is_no_crash(world: RingSimulation, later: list[float]) -> None:
    world.ask(ask(max_tokens=60))
    for _ in range(2 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.suspect("engine-0")
        engine_dies_computing(world)
        later[0] += 2 * RETURN_GRACE
        world.heal()
        world.trust()
        settle(world, 1)
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH


def test_cut_links_are_no_crashes(world: RingSimulation) -> None:
    world.ask(ask())
    for _ in range(3 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.detach(processors_stream(world))
        world.heal()
        world.flow(tokens=1)
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH
    assert ids(world) == expected(20)
    world.pass_time(2 * ORPHAN_GRACE)
    assert world.quiet


def test_a_drain_is_no_crash(world: RingSimulation) -> None:
    world.ask(ask(max_tokens=60))
    for _ in range(2 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.flow(tokens=1)
        engine_says(world, draining={})
        world.kill_engine("engine-0")
        world.heal()
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH
    assert ids(world) == expected(60)
