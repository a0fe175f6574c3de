"""Peers that give no sign of life: their requests move if they can, and a false alarm is harmless."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.rpc import status_pb2
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.types.v1 import link_pb2

from services.ring.errors import Code
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_INTERVAL, BEAT_LIMIT
from services.ring.routing_logic import Route, Routes
from tests.services.processor.ring_requests import ask, end, events, expected, ids, moves, settle, usage
from tests.services.ring.ring_simulation import RingSimulation

LONG = 60


def beat(world: RingSimulation, now: float, *, but: PeerId) -> None:
    """Everybody gives a sign of life, except one."""
    for node in [*world.peers._engines.values(), *world.peers._detokenizers.values()]:
        if node.peer != but:
            node.liveness.beat(now)


def hang(world: RingSimulation, peer: PeerId) -> None:
    """So long that the peer is suspected."""
    start = time.monotonic()
    for look in range(round(1.5 * BEAT_LIMIT / BEAT_INTERVAL)):
        now = start + look * BEAT_INTERVAL
        beat(world, now, but=peer)
        world.link_events.check_liveness(now)
    assert world.peers.suspects == {peer}
    world.in_flight.tick(time.monotonic())


def come_back(world: RingSimulation, peer: PeerId) -> None:
    """The peer gives a sign of life."""
    now = (world.peers._checked_at or 0.0) + BEAT_INTERVAL
    beat(world, now, but=PeerId("nobody", 1))
    world.link_events.check_liveness(now)
    assert not world.peers.suspects


def begin(world: RingSimulation) -> Route:
    """A long request that has a few tokens."""
    world.ask(ask(max_tokens=LONG))
    world.flow(tokens=3)
    world.flow(tokens=3)
    return route_of(world)


def route_of(world: RingSimulation) -> Route:
    (live,) = world.in_flight._requests.values()
    assert live.route is not None
    return live.route


def test_requests_leave_an_engine_that_hangs(wide: RingSimulation) -> None:
    route = begin(wide)
    hung = wide.engines[route.engine.name]
    hung.core.running.clear()  # it computes nothing, and reads nothing
    before = [stream for stream in wide.streams() if stream.engine is hung and stream.peer.name == "processor"]
    (stream,) = before
    commands, stream.commands = stream.commands, type(stream.commands)()
    hang(wide, route.engine)
    assert route_of(wide).engine != route.engine
    told = list(stream.commands)
    stream.commands.clear()
    settle(wide)
    assert end(wide).finish_reason == FinishReason.LENGTH
    assert ids(wide) == expected(LONG)
    (started,) = moves(wide)
    assert started.identical
    assert route.engine.name in started.reason
    assert hung.registry.num_ledgers == 1
    stream.commands.extend([*commands, *told])  # it was a false alarm
    come_back(wide, route.engine)
    settle(wide)
    assert wide.quiet


def test_output_of_a_falsely_suspected_engine_changes_nothing(wide: RingSimulation) -> None:
    route = begin(wide)
    (live,) = wide.in_flight._requests.values()
    epoch = live.delivery.epoch
    hung = wide.engines[route.engine.name]
    hung.core.step(7)  # its outputs are on their way
    hang(wide, route.engine)
    assert live.delivery.epoch == epoch + 1
    assert not live.poison.count, "a hang is no crash"
    settle(wide)
    assert ids(wide) == expected(LONG)
    assert usage(wide).completion_tokens == LONG
    assert wide.quiet


def test_requests_stay_if_there_is_no_other_engine(world: RingSimulation) -> None:
    route = begin(world)
    hang(world, route.engine)
    assert route_of(world) == route
    come_back(world, route.engine)
    settle(world)
    assert ids(world) == expected(LONG)
    assert not moves(world)


def test_requests_move_as_soon_as_there_is_another_engine(wide: RingSimulation) -> None:
    route = begin(wide)
    (other,) = [name for name in wide.engines if name != route.engine.name]
    for stream in list(wide.engines[other].streams.values()):
        wide.detach(stream)
    hang(wide, route.engine)
    assert route_of(wide).engine == route.engine
    wide.heal()
    for stream in wide.engines[other].streams.values():
        stream.write()
        stream.read()
    wide.in_flight.tick(time.monotonic())
    assert route_of(wide).engine.name == other


def test_requests_leave_a_detokenizer_that_hangs(wide: RingSimulation) -> None:
    route = begin(wide)
    hang(wide, route.detokenizer)
    assert route_of(wide).engine == route.engine
    assert route_of(wide).detokenizer != route.detokenizer
    settle(wide)
    assert ids(wide) == expected(LONG)
    assert not events(wide, "continued")
    assert wide.quiet


def test_a_processor_that_was_suspended_suspects_no_peer(wide: RingSimulation) -> None:
    now = time.monotonic()
    wide.link_events.check_liveness(now)
    wide.link_events.check_liveness(now + 3 * BEAT_LIMIT)
    assert not wide.peers.suspects
    for look in range(1, 8):
        wide.link_events.check_liveness(now + 3 * BEAT_LIMIT + look * BEAT_INTERVAL)
    assert len(wide.peers.suspects) == 4, "but then it counts"


def hears(world: RingSimulation, detokenizer: PeerId, *engines: str, now: float) -> None:
    """A detokenizer says what it hears."""
    heard = [link_pb2.Peer(name=name, incarnation=world.engines[name].me.incarnation) for name in engines]
    changes = link_pb2.PeerChanges(revision=1, reset=True, added=heard)
    world.link_events.detokenizer_frame(detokenizer, detokenizer_pb2.SubscribeResponse(engines=changes))
    world.in_flight.tick(now)


def test_requests_leave_a_partitioned_pair_for_another_detokenizer(wide: RingSimulation) -> None:
    """The link between the two is half open, and both give signs of life to the processor."""
    route = begin(wide)
    others = [name for name in wide.engines if name != route.engine.name]
    hears(wide, route.detokenizer, *others, now=time.monotonic())
    assert route_of(wide).engine == route.engine
    assert route_of(wide).detokenizer != route.detokenizer
    another = ask()
    another.request_id = "another"
    wide.ask(another)
    assert {live.route for live in wide.in_flight._requests.values()} & {route} == set(), "nothing new goes that way"
    settle(wide)
    assert not wide.in_flight.num_live
    assert wide.quiet


def test_requests_leave_an_engine_that_no_detokenizer_hears(wide: RingSimulation) -> None:
    route, now = begin(wide), time.monotonic()
    others = [name for name in wide.engines if name != route.engine.name]
    for detokenizer in wide.detokenizers.values():
        hears(wide, detokenizer.me, *others, now=now)
    assert route_of(wide).engine == route.engine, "it may be back in a moment"
    wide.in_flight.tick(time.monotonic() + 2 * BEAT_LIMIT)
    assert route_of(wide).engine != route.engine
    settle(wide)
    assert ids(wide) == expected(LONG)


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_full_engine_ends_no_request_that_was_in_flight_before(wide: RingSimulation, taken_before: bool) -> None:
    if taken_before:
        wide.kill_engine(begin(wide).engine.name)
    else:
        wide.ask(ask(max_tokens=LONG))
    (live,) = wide.in_flight._requests.values()
    assert live.route is not None
    for stream in wide.streams():
        stream.commands.clear()
    status = status_pb2.Status(code=Code.RESOURCE_EXHAUSTED, message="full")
    wide.in_flight.rejected(link_pb2.Rejection(request_id=live.request_id, epoch=live.delivery.epoch, status=status))
    if not taken_before:
        assert end(wide).error.code == Code.RESOURCE_EXHAUSTED
        return
    wide.in_flight.tick(live.retry_at - 0.001)
    assert live.route is None, "not again at once"
    wide.in_flight.tick(live.retry_at)
    assert live.route is not None
    settle(wide)
    assert ids(wide) == expected(LONG)


def test_a_tick_looks_only_at_requests_that_are_due(wide: RingSimulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are live, suspects have, or wait: what found no other route is looked at when routes change."""
    names = [f"request-{number}" for number in range(20)]
    for name in names:
        request = ask(max_tokens=LONG)
        request.request_id = name
        wide.ask(request)
    wide.flow(tokens=3)
    looks: list[str] = []
    choose = Routes.choose

    def looking(routes: Routes, request_id: str, *others: Any, **named: Any) -> Route | None:
        looks.append(request_id)
        return choose(routes, request_id, *others, **named)

    monkeypatch.setattr(Routes, "choose", looking)
    for _ in range(3):
        wide.in_flight.tick(time.monotonic())
    assert not looks, "nothing has changed"
    for name in list(wide.engines):
        wide.suspect(name)
    assert len(looks) > len(names), "some of them twice: there was an engine yet"
    looks.clear()
    for _ in range(3):
        wide.in_flight.tick(time.monotonic())
    assert not looks, "they found no other"
    for name in list(wide.engines):
        wide.kill_engine(name)
    looks.clear()
    wide.in_flight.tick(time.monotonic())
    wide.in_flight.tick(time.monotonic())
    assert len(looks) <= len(names), "those without a route, once"
    monkeypatch.undo()
    wide.heal()
    wide.trust()
    settle(wide)
    assert wide.quiet
