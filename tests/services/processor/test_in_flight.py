"""Requests in flight end once, and leave nothing behind."""

from __future__ import annotations

import gc

from services.processor.request import Request
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring, ask


def test_a_request_ends_once(world: Ring) -> None:
    call = world.begin(tokens=2)
    for finish_reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.CANCELLED):
        world.in_flight.end(call, finish_reason)
    assert world.end().finish_reason == FinishReason.CANCELLED
    world.settle()
    assert world.quiet


def test_an_ended_request_is_freed_without_the_garbage_collector(world: Ring) -> None:
    world.ask(ask())
    world.settle()
    call = world.ask(ask())
    world.flow(tokens=1)
    gc.collect()
    gc.disable()
    try:
        world.in_flight.end(call, FinishReason.CANCELLED)
        del call
        world.settle()
        objects = [one for one in gc.get_objects() if type(one) is Request]
        assert not [one for one in objects if one.stream is world.client]
    finally:
        gc.enable()
