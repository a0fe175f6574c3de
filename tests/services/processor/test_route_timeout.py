"""How long a request may be without a route, and which times count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from services.ring.errors import Code
from services.ring.events import FinishReason
from services.ring.liveness import BEAT_LIMIT
from tests.services.processor.ring_requests import ask, end, events, expected, ids, settle, usage
from tests.services.ring.ring_simulation import RingSimulation


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that the world sees."""
    clock = SimpleNamespace(now=1000.0)
    modules = [f"services.processor.{name}" for name in ("in_flight", "failover", "dispatcher")]
    for module in (*modules, "tests.services.ring.ring_simulation"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def wait(world: RingSimulation, clock: SimpleNamespace, seconds: float) -> None:
    """Time passes, in which every command is read and answered; engines compute nothing."""
    clock.now += seconds
    world.flow(tokens=0)
    world.flow(tokens=0)


def test_the_timeout_ends_a_request_with_what_was_delivered(world: RingSimulation, clock: SimpleNamespace) -> None:
    world.failover._route_timeout = 5.0
    world.ask(ask())
    world.flow(tokens=2)
    world.flow(tokens=2)
    world.kill_engine("engine-0")
    wait(world, clock, 4.0)
    assert not events(world, "request_finished")
    wait(world, clock, 2.0)
    assert end(world).error.code == Code.UNAVAILABLE
    assert end(world).error.details, "when to come back"
    assert usage(world).completion_tokens == len(ids(world)) > 0


def test_the_timeout_goes_on_when_an_engine_refuses(world: RingSimulation, clock: SimpleNamespace) -> None:
    world.failover._route_timeout = 5.0
    world.engines["engine-0"].registry.draining = True  # nobody was told
    world.ask(ask())
    for _ in range(4):
        wait(world, clock, 1.0)
        assert not events(world, "request_finished")
        (live,) = world.in_flight._requests.values()
        assert live.delivery.epoch > 1, "it is tried again and again"
    wait(world, clock, 1.5)
    assert end(world).error.code == Code.UNAVAILABLE
    assert "draining" in end(world).error.message
    settle(world)
    assert world.quiet


def test_the_timeout_begins_anew_after_output(world: RingSimulation, clock: SimpleNamespace) -> None:
    world.failover._route_timeout = 5.0
    world.failover._max_crash_resubmits = 3
    world.ask(ask())
    for _ in range(2):
        world.flow(tokens=1)
        world.flow(tokens=1)
        world.kill_engine("engine-0")
        wait(world, clock, 4.0)
        world.heal()
        settle(world, rounds=1)
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH


def test_the_timeout_applies_without_a_detokenizer_too(world: RingSimulation, clock: SimpleNamespace) -> None:
    world.failover._route_timeout = 5.0
    world.ask(ask())
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_detokenizer("detokenizer-0")
    wait(world, clock, 4.0)
    assert not events(world, "request_finished")
    wait(world, clock, 2.0)
    assert end(world).error.code == Code.UNAVAILABLE
    assert "detokenizer-0" in end(world).error.message


def test_time_in_an_engines_queue_does_not_count(world: RingSimulation, clock: SimpleNamespace) -> None:
    world.failover._route_timeout = 5.0
    world.ask(ask())
    for _ in range(5):
        wait(world, clock, 10.0)
    world.kill_engine("engine-0")
    wait(world, clock, 4.0)
    assert not events(world, "request_finished")
    wait(world, clock, 2.0)
    assert end(world).error.code == Code.UNAVAILABLE


def test_an_engine_that_has_lost_its_one_detokenizer_is_left_after_a_while(
    wide: RingSimulation, clock: SimpleNamespace
) -> None:
    """Each engine is attached to one of two detokenizers: another pair can take what it has."""
    for engine, detokenizer in (("engine-0", "detokenizer-1"), ("engine-1", "detokenizer-0")):
        wide.detach(wide.engines[engine].streams[detokenizer])
    wide.flow()
    wide.ask(ask(max_tokens=60))
    wide.flow(tokens=3)
    (live,) = wide.in_flight._requests.values()
    route = live.route
    assert route is not None
    wide.kill_detokenizer(route.detokenizer.name)
    wide.in_flight.tick(clock.now)
    assert live.request_id in wide.failover._unrouted, "its engine may be joining another"
    clock.now += BEAT_LIMIT + 0.1
    wide.in_flight.tick(clock.now)
    assert live.route is not None
    assert live.route.engine != route.engine
    settle(wide)
    assert ids(wide) == expected(60)
