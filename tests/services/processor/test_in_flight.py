"""Requests in flight end once, and leave nothing behind."""

from __future__ import annotations

import gc

from services.processor.request import Request
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import (
    ask,
    begin,
    end,
    expected,
    ids,
    processors_stream,
    settle,
    usage,
)
from tests.services.ring.ring_simulation import ORPHAN_GRACE, RingSimulation


def test_only_the_choices_that_are_resumed_are_computed(world: RingSimulation) -> None:
    request = ask(n=3)
    request.resume.choices.add(choice=1)
    world.ask(request)
    world.flow(tokens=1)
    (running,) = world.engines["engine-0"].core.requests.values()
    assert running.resume.keys() == {1}
    settle(world)
    assert end(world).choice == 1
    assert ids(world, 1) == expected(20, 1)


def test_a_request_ends_once(world: RingSimulation) -> None:
    call = begin(world, tokens=2)
    for finish_reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.CANCELLED):
        world.in_flight.end(call, finish_reason)
    assert end(world).finish_reason == FinishReason.CANCELLED
    settle(world)
    assert world.quiet


def test_an_ended_request_is_freed_without_the_garbage_collector(world: RingSimulation) -> None:
    world.ask(ask())
    settle(world)
    call = world.ask(ask())
    world.flow(tokens=1)
    gc.collect()
    gc.disable()
    try:
        world.in_flight.end(call, FinishReason.CANCELLED)
        del call
        settle(world)
        objects = [one for one in gc.get_objects() if type(one) is Request]
        assert not [one for one in objects if one.stream is world.client]
    finally:
        gc.enable()


def test_a_done_lost_with_its_link_leaves_nothing(world: RingSimulation) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.in_flight.end(call, FinishReason.CANCELLED)
    processors_stream(world).commands.clear()
    world.detach(processors_stream(world))
    world.heal()
    settle(world)
    assert world.engines["engine-0"].registry.num_ledgers == 1
    world.pass_time(2 * ORPHAN_GRACE)
    settle(world)
    assert world.quiet


def test_an_overshoot_is_neither_delivered_nor_counted(world: RingSimulation) -> None:
    letters = "".join(chr(ord("a") + token - min(expected(20))) for token in expected(20))
    request = ask()
    request.stopping.stop.append(letters[2:5])
    world.ask(request)
    settle(world)
    stop = letters.index(letters[2:5]) + 3
    assert end(world).finish_reason == FinishReason.STOP
    assert ids(world) == expected(stop)
    assert usage(world).completion_tokens == stop
    assert world.quiet
