"""Requests in flight end once, and leave nothing behind."""

from __future__ import annotations

import gc

from services.processor.request import Request
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring, ask, expected
from tests.services.ring.ring_simulation import ORPHAN_GRACE


def test_only_the_choices_that_are_resumed_are_computed(world: Ring) -> None:
    request = ask(n=3)
    request.resume.choices.add(choice=1)
    world.ask(request)
    world.flow(tokens=1)
    (running,) = world.engines["engine-0"].core.requests.values()
    assert running.resume.keys() == {1}
    world.settle()
    assert world.end().choice == 1
    assert world.ids(1) == expected(20, 1)


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


def test_a_done_lost_with_its_link_leaves_nothing(world: Ring) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.in_flight.end(call, FinishReason.CANCELLED)
    world.stream().commands.clear()
    world.detach(world.stream())
    world.heal()
    world.settle()
    assert world.engines["engine-0"].registry.num_ledgers == 1
    world.pass_time(2 * ORPHAN_GRACE)
    world.settle()
    assert world.quiet


def test_an_overshoot_is_neither_delivered_nor_counted(world: Ring) -> None:
    letters = "".join(chr(ord("a") + token - min(expected(20))) for token in expected(20))
    request = ask()
    request.stopping.stop.append(letters[2:5])
    world.ask(request)
    world.settle()
    stop = letters.index(letters[2:5]) + 3
    assert world.end().finish_reason == FinishReason.STOP
    assert world.ids() == expected(stop)
    assert world.usage().completion_tokens == stop
    assert world.quiet
