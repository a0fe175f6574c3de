"""What becomes of a request when its engine or detokenizer fails, refuses or leaves, or frames of it are lost."""

from __future__ import annotations

from typing import Any

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2

from services.processor.failover import MAX_REPLAYS
from services.processor.request import Request
from services.ring.errors import Code
from services.ring.events import FinishReason
from services.ring.routing_logic import Route, Routes
from tests.services.processor.ring_requests import Ring, ask, expected, route_of


def test_a_rejection_of_an_earlier_epoch_is_ignored(world: Ring) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.kill_engine("engine-0")
    world.heal()
    world.flow(tokens=1)
    assert call.delivery.epoch == 2
    world.engine_rejects(call, Code.INVALID_ARGUMENT, epoch=1)
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH


def test_a_detokenizer_that_is_lost_while_the_engine_drains_is_replaced(wide: Ring) -> None:
    call = wide.begin(60)
    route = route_of(call)
    wide.engines[route.engine.name].registry.draining = True
    wide.engine_says(route.engine.name, draining={})
    wide.kill_detokenizer(route.detokenizer.name)
    assert route_of(call).engine == route.engine, "it goes on where it is"
    wide.settle()
    assert wide.end().finish_reason == FinishReason.LENGTH
    assert not wide.moves()


def receive_beyond(world: Ring, call: Request) -> None:
    """A delta that something was lost before."""
    delta = detokenizer_pb2.TextOutputs(request_ids=[call.request_id], epochs=[call.delivery.epoch], texts=["a"])
    delta.choices.append(0)
    delta.first_positions.append(50)
    delta.token_counts.append(1)
    delta.token_ids.append(1)
    world.text_output.receive(delta)


def test_frames_that_do_not_fit_cause_no_replay_without_a_route(world: Ring) -> None:
    call = world.begin()
    world.kill_detokenizer("detokenizer-0")
    epoch = call.delivery.epoch
    for _ in range(MAX_REPLAYS + 1):
        receive_beyond(world, call)
    assert (call.delivery.epoch, call.delivery.replays) == (epoch, 0)
    assert not world.stream().commands
    world.heal()
    world.settle()
    assert world.ids() == expected(20)


@pytest.mark.parametrize("times", [MAX_REPLAYS, MAX_REPLAYS + 1])
def test_replays_in_a_row_are_bounded(world: Ring, times: int) -> None:
    call = world.ask(ask())
    for _ in range(times):
        receive_beyond(world, call)
    world.settle()
    assert world.end().finish_reason == (FinishReason.LENGTH if times == MAX_REPLAYS else FinishReason.ERROR)


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_full_engine_ends_no_request_that_was_in_flight_before(wide: Ring, taken_before: bool) -> None:
    if taken_before:
        live = wide.begin(60)
        wide.kill_engine(route_of(live).engine.name)
    else:
        live = wide.ask(ask(60))
    assert live.route is not None
    wide.heal()
    for stream in wide.streams():
        stream.commands.clear()
    wide.engine_rejects(live, Code.RESOURCE_EXHAUSTED)
    if not taken_before:
        assert wide.end().error.code == Code.RESOURCE_EXHAUSTED
        return
    wide.tick(live.retry_at - 0.001)
    assert live.route is None, "not again at once"
    wide.tick(live.retry_at)
    assert live.route is not None
    wide.settle()
    assert wide.ids() == expected(60)


def test_a_tick_looks_only_at_requests_that_are_due(wide: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are live, suspects have, or wait: what found no other route is looked at when routes change."""
    names = [f"request-{number}" for number in range(20)]
    for name in names:
        wide.ask(ask(60, name=name))
    wide.flow(tokens=3)
    looks: list[str] = []
    choose = Routes.choose

    def looking(routes: Routes, request_id: str, *others: Any, **named: Any) -> Route | None:
        looks.append(request_id)
        return choose(routes, request_id, *others, **named)

    monkeypatch.setattr(Routes, "choose", looking)
    for _ in range(3):
        wide.tick()
    assert not looks, "nothing has changed"
    for name in list(wide.engines):
        wide.suspect(name)
    assert len(looks) > len(names), "some of them twice: there was an engine yet"
    looks.clear()
    for _ in range(3):
        wide.tick()
    assert not looks, "they found no other"
    for name in list(wide.engines):
        wide.kill_engine(name)
    looks.clear()
    wide.tick()
    wide.tick()
    assert len(looks) <= len(names), "those without a route, once"
    monkeypatch.undo()
    wide.heal()
    wide.trust()
    wide.settle()
    assert wide.quiet
