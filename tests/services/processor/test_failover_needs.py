"""A request that needs something of its peers goes where that is, also when it moves."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from services.ring.errors import Code
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring, ask, expected, route_of
from tests.services.ring.ring_simulation import MODEL_MESSAGE


def is_older(world: Ring, name: str) -> None:
    """A detokenizer starts again, of a release that divides no answers."""
    world.older.add(name)
    world.kill_detokenizer(name)
    world.heal()
    world.flow()


@pytest.mark.parametrize("older", ["detokenizer-0", "detokenizer-1"])
def test_an_answer_in_parts_goes_over_detokenizers_that_can_divide_it(wide: Ring, older: str) -> None:
    is_older(wide, older)
    (newer,) = set(wide.detokenizers) - {older}
    message = ask(60)
    message.output.parse.tool_names.append("f")
    call = wide.ask(message)
    wide.flow(tokens=3)
    assert route_of(call).detokenizer.name == newer
    wide.kill_detokenizer(newer)
    wide.flow()
    assert wide.ids() == expected(len(wide.ids())), "it waits, though the other one could decode it"
    assert not wide.events("choice_finished")
    wide.heal()
    wide.settle()
    assert wide.end().finish_reason == FinishReason.LENGTH
    assert wide.ids() == expected(60)
    deltas = [response.delta for response in wide.events("delta")]
    parts = [part.content for delta in deltas for part in delta.parts] + [part.content for part in wide.end().parts]
    assert "".join(parts) == "".join(delta.text for delta in deltas)
    assert wide.quiet


def test_where_none_can_the_request_ends_as_one_without_a_route(world: Ring, clock: SimpleNamespace) -> None:
    is_older(world, "detokenizer-0")
    message = ask()
    message.output.parse.reasoning = "none"
    world.dispatcher.route_timeout = 5.0
    world.ask(message)
    plain = world.ask(ask(name="plain"))
    assert plain.route is not None
    clock.now = time.monotonic() + 6
    world.trust()
    error = next(
        response.choice_finished.error
        for response in world.events("choice_finished")
        if response.choice_finished.HasField("error")
    )
    assert error.code == Code.UNAVAILABLE
    assert "have what it needs (parse)" in error.message


def test_a_later_engine_adds_its_capabilities_to_the_model(wide: Ring) -> None:
    assert "constraint" not in wide.model.capabilities
    message = wide.described["engine-1"] = type(MODEL_MESSAGE)()
    message.CopyFrom(MODEL_MESSAGE)
    message.capabilities.extend(["generate", "constraint"])
    wide.kill_engine("engine-1")
    wide.heal()
    wide.flow()
    assert "constraint" in wide.model.capabilities
    constrained = ask()
    constrained.constraint.regex = "[ab]+"
    calls = [wide.ask(constrained) for _ in range(3)]
    assert {route_of(call).engine.name for call in calls} == {"engine-1"}
