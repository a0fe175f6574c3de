"""Only engines that die while they compute a request make it poison; drains, cuts, hangs and waiting do not."""

from __future__ import annotations

from types import SimpleNamespace

from services.ring.errors import Code
from services.ring.events import FinishReason
from services.ring.poison import MAX_CRASH_RESUBMITS, RETURN_GRACE, WAITING_FACTOR
from tests.services.processor.ring_requests import Ring, ask, expected, route_of
from tests.services.ring.ring_simulation import ORPHAN_GRACE


def engine_dies_computing(world: Ring, name: str = "engine-0") -> None:
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_engine(name)


def engine_dies_before_it_begins(world: Ring) -> None:
    world.stream().read_commands()
    assert world.engines["engine-0"].registry.num_ledgers == 1
    world.kill_engine("engine-0")


def test_a_request_survives_fewer_crashes_than_the_limit(world: Ring, clock: SimpleNamespace) -> None:
    world.ask(ask())
    for _ in range(MAX_CRASH_RESUBMITS - 1):
        engine_dies_computing(world)
        clock.now += 2 * RETURN_GRACE
        world.heal()
        world.settle(1)
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH
    assert world.ids() == expected(20)


def test_a_poison_request_is_not_resubmitted(world: Ring, clock: SimpleNamespace) -> None:
    world.ask(ask())
    for _ in range(MAX_CRASH_RESUBMITS):
        engine_dies_computing(world)
        world.heal()
    world.settle()
    assert not world.events("request_finished"), "the last one may have been cut off, and come back"
    assert not world.engines["engine-0"].registry.num_ledgers
    clock.now += 2 * RETURN_GRACE
    world.settle()
    assert world.end().error.code == Code.INTERNAL
    assert world.ids() == expected(len(world.ids()))
    assert world.usage().completion_tokens == len(world.ids()) > 0
    assert world.quiet


def test_a_request_that_merely_waited_is_resubmitted(world: Ring, clock: SimpleNamespace) -> None:
    world.ask(ask())
    for _ in range(WAITING_FACTOR * MAX_CRASH_RESUBMITS - 1):
        engine_dies_before_it_begins(world)
        clock.now += 2 * RETURN_GRACE
        world.heal()
        for stream in world.streams():
            stream.write()
            stream.read()
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH


def test_resubmits_of_a_waiting_request_are_bounded_too(world: Ring) -> None:
    """What kills an engine before it can say what it begins would else do so for ever."""
    world.ask(ask())
    for _ in range(WAITING_FACTOR * MAX_CRASH_RESUBMITS):
        engine_dies_before_it_begins(world)
        world.heal()
        for stream in world.streams():
            stream.write()
            stream.read()
    assert world.end().error.code == Code.INTERNAL


def test_engines_that_come_back_had_not_died(wide: Ring, clock: SimpleNamespace) -> None:
    """As if the processor's own network were gone: whatever it tries, it loses."""
    live = wide.ask(ask(max_tokens=60))
    for _ in range(MAX_CRASH_RESUBMITS):
        wide.flow(tokens=1)
        wide.flow(tokens=1)
        wide.detach(wide.stream(route_of(live).engine.name))
    clock.now += RETURN_GRACE / 2
    wide.heal()
    clock.now += RETURN_GRACE
    wide.settle()
    assert wide.end().finish_reason == FinishReason.LENGTH
    assert wide.ids() == expected(60)


def test_a_hang_is_no_crash(world: Ring, clock: SimpleNamespace) -> None:
    world.ask(ask(max_tokens=60))
    for _ in range(2 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.suspect("engine-0")
        engine_dies_computing(world)
        clock.now += 2 * RETURN_GRACE
        world.heal()
        world.trust()
        world.settle(1)
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH


def test_cut_links_are_no_crashes(world: Ring) -> None:
    world.ask(ask())
    for _ in range(3 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.detach(world.stream())
        world.heal()
        world.flow(tokens=1)
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH
    assert world.ids() == expected(20)
    world.pass_time(2 * ORPHAN_GRACE)
    assert world.quiet


def test_a_drain_is_no_crash(world: Ring) -> None:
    world.ask(ask(max_tokens=60))
    for _ in range(2 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.flow(tokens=1)
        world.engine_says(draining={})
        world.kill_engine("engine-0")
        world.heal()
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH
    assert world.ids() == expected(60)
