"""Peers that give no sign of life: their requests move if they can, and a false alarm is harmless."""

from __future__ import annotations

import time

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.types.v1 import link_pb2

from services.ring.identity import PeerId
from services.ring.liveness import BEAT_INTERVAL, BEAT_LIMIT
from tests.services.processor.ring_requests import Ring, ask, expected, route_of

LONG = 60


def beat(world: Ring, now: float, *, but: PeerId | None = None) -> None:
    """Everybody gives a sign of life, except one; then the processor looks."""
    for node in world.peers.all():
        if node.peer != but:
            node.liveness.beat(now)
    world.link_events.check_liveness(now)


def hang(world: Ring, peer: PeerId) -> None:
    """So long that the peer is suspected."""
    start = time.monotonic()
    for look in range(round(1.5 * BEAT_LIMIT / BEAT_INTERVAL)):
        beat(world, start + look * BEAT_INTERVAL, but=peer)
    assert world.peers.suspects == {peer}
    world.tick()


def come_back(world: Ring) -> None:
    """All peers give a sign of life, later than in ``hang``."""
    beat(world, time.monotonic() + 2 * BEAT_LIMIT)
    assert not world.peers.suspects


def test_requests_leave_an_engine_that_hangs_and_its_late_output_changes_nothing(wide: Ring) -> None:
    live = wide.begin(LONG, tokens=3)
    route = route_of(live)
    wide.engines[route.engine.name].core.step(7)  # its outputs are on their way
    hang(wide, route.engine)
    assert route_of(live).engine != route.engine
    assert not live.poison.count, "a hang is no crash"
    wide.settle()
    (started,) = wide.moves()
    assert started.identical
    assert route.engine.name in started.reason
    assert wide.ids() == expected(LONG)
    assert wide.usage().completion_tokens == LONG
    come_back(wide)
    assert wide.quiet


def test_requests_stay_if_there_is_no_other_engine(world: Ring) -> None:
    live = world.begin(LONG, tokens=3)
    route = route_of(live)
    hang(world, route.engine)
    assert route_of(live) == route
    come_back(world)
    world.settle()
    assert world.ids() == expected(LONG)
    assert not world.moves()


def test_requests_move_as_soon_as_there_is_another_engine(wide: Ring) -> None:
    live = wide.begin(LONG, tokens=3)
    route = route_of(live)
    (other,) = [name for name in wide.engines if name != route.engine.name]
    for stream in list(wide.engines[other].streams.values()):
        wide.detach(stream)
    hang(wide, route.engine)
    assert route_of(live).engine == route.engine
    wide.heal()
    for stream in wide.engines[other].streams.values():
        stream.write()
        stream.read()
    wide.tick()
    assert route_of(live).engine.name == other


def test_requests_leave_a_detokenizer_that_hangs(wide: Ring) -> None:
    live = wide.begin(LONG, tokens=3)
    route = route_of(live)
    hang(wide, route.detokenizer)
    assert route_of(live).engine == route.engine
    assert route_of(live).detokenizer != route.detokenizer
    wide.settle()
    assert wide.ids() == expected(LONG)
    assert not wide.events("continued")
    assert wide.quiet


def hears(world: Ring, detokenizer: PeerId, *engines: str, now: float) -> None:
    """A detokenizer says what it hears."""
    heard = [link_pb2.Peer(name=name, incarnation=world.engines[name].me.incarnation) for name in engines]
    changes = link_pb2.PeerChanges(revision=1, reset=True, added=heard)
    world.link_events.detokenizer_frame(detokenizer, detokenizer_pb2.SubscribeResponse(engines=changes))
    world.tick(now)


def test_requests_leave_a_partitioned_pair_for_another_detokenizer(wide: Ring) -> None:
    """The link between the two is half open, and both give signs of life to the processor."""
    live = wide.begin(LONG, tokens=3)
    route = route_of(live)
    others = [name for name in wide.engines if name != route.engine.name]
    hears(wide, route.detokenizer, *others, now=time.monotonic())
    assert route_of(live).engine == route.engine
    assert route_of(live).detokenizer != route.detokenizer
    assert route_of(wide.ask(ask(name="another"))) != route, "nothing new goes that way"
    wide.settle()
    assert wide.quiet


def test_requests_leave_an_engine_that_no_detokenizer_hears(wide: Ring) -> None:
    live, now = wide.begin(LONG, tokens=3), time.monotonic()
    route = route_of(live)
    others = [name for name in wide.engines if name != route.engine.name]
    for detokenizer in wide.detokenizers.values():
        hears(wide, detokenizer.me, *others, now=now)
    assert route_of(live).engine == route.engine, "it may be back in a moment"
    wide.tick(time.monotonic() + 2 * BEAT_LIMIT)
    assert route_of(live).engine != route.engine
    wide.settle()
    assert wide.ids() == expected(LONG)
