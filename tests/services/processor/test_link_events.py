"""Peers are suspected and trusted by what their links report."""

from __future__ import annotations

import time

import pytest
from ringline.engine.v1 import engine_pb2

from services.ring.liveness import BEAT_INTERVAL, BEAT_LIMIT
from tests.services.processor.ring_requests import Ring


@pytest.mark.parametrize("draining", [False, True])
def test_an_engine_that_is_trusted_again_gets_work_unless_it_drains(world: Ring, draining: bool) -> None:
    assert world.routes.any_joined()
    later = time.monotonic() + 2 * BEAT_LIMIT
    world.link_events.check_liveness(later)
    assert not world.routes.any_joined()
    world.engine_says(load=engine_pb2.Load())
    (detokenizer,) = world.peers.detokenizers.values()
    detokenizer.liveness.beat(time.monotonic())
    if draining:
        world.engine_says(draining={})
    world.link_events.check_liveness(time.monotonic())
    assert world.routes.any_joined() == (not draining)


def test_a_processor_that_was_suspended_suspects_no_peer(wide: Ring) -> None:
    now = time.monotonic()
    wide.link_events.check_liveness(now)
    wide.link_events.check_liveness(now + 3 * BEAT_LIMIT)
    assert not wide.peers.suspects
    for look in range(1, 8):
        wide.link_events.check_liveness(now + 3 * BEAT_LIMIT + look * BEAT_INTERVAL)
    assert len(wide.peers.suspects) == 4, "but then it counts"
