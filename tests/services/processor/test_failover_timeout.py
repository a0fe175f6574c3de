"""How long a request may be without a route, and which times count."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from ringline.engine.v1 import engine_pb2

from services.engine.engine_messages import submission_of
from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from tests.services.processor.ring_requests import Ring, ask, expected, route_of
from tests.services.ring.ring_simulation import MODEL, MODEL_MESSAGE


def wait(world: Ring, clock: SimpleNamespace, seconds: float) -> None:
    """Time passes, in which every command is read and answered; engines compute nothing."""
    clock.now += seconds
    world.flow(tokens=0)
    world.flow(tokens=0)


def test_the_timeout_ends_a_request_with_what_was_delivered(world: Ring, clock: SimpleNamespace) -> None:
    world.dispatcher.route_timeout = 5.0
    world.begin(tokens=2)
    world.kill_engine("engine-0")
    wait(world, clock, 4.0)
    assert not world.events("request_finished")
    wait(world, clock, 2.0)
    assert world.end().error.code == Code.UNAVAILABLE
    assert world.end().error.details, "when to come back"
    assert world.usage().completion_tokens == len(world.ids()) > 0


def test_the_timeout_goes_on_when_an_engine_refuses(world: Ring, clock: SimpleNamespace) -> None:
    world.dispatcher.route_timeout = 5.0
    world.engines["engine-0"].registry.draining = True  # nobody was told
    live = world.ask(ask())
    for _ in range(4):
        wait(world, clock, 1.0)
        assert not world.events("request_finished")
        assert live.delivery.epoch > 1, "it is tried again and again"
    wait(world, clock, 1.5)
    assert world.end().error.code == Code.UNAVAILABLE
    assert "draining" in world.end().error.message
    world.settle()
    assert world.quiet


def test_the_timeout_begins_anew_after_output(clock: SimpleNamespace) -> None:
    world = Ring(["engine-0"], ["detokenizer-0"], max_crash_resubmits=3)
    world.dispatcher.route_timeout = 5.0
    world.ask(ask())
    for _ in range(2):
        world.flow(tokens=1)
        world.flow(tokens=1)
        world.kill_engine("engine-0")
        wait(world, clock, 4.0)
        world.heal()
        world.settle(rounds=1)
    world.settle()
    assert world.end().finish_reason == FinishReason.LENGTH


def test_the_timeout_applies_without_a_detokenizer_too(world: Ring, clock: SimpleNamespace) -> None:
    world.dispatcher.route_timeout = 5.0
    world.begin()
    world.kill_detokenizer("detokenizer-0")
    wait(world, clock, 4.0)
    assert not world.events("request_finished")
    wait(world, clock, 2.0)
    assert world.end().error.code == Code.UNAVAILABLE
    assert "detokenizer-0" in world.end().error.message


def test_time_in_an_engines_queue_does_not_count(world: Ring, clock: SimpleNamespace) -> None:
    world.dispatcher.route_timeout = 5.0
    world.ask(ask())
    for _ in range(5):
        wait(world, clock, 10.0)
    world.kill_engine("engine-0")
    wait(world, clock, 4.0)
    assert not world.events("request_finished")
    wait(world, clock, 2.0)
    assert world.end().error.code == Code.UNAVAILABLE


def test_an_engine_that_has_lost_its_one_detokenizer_is_left_after_a_while(wide: Ring, clock: SimpleNamespace) -> None:
    """Each engine is attached to one of two detokenizers: another pair can take what it has."""
    for engine, detokenizer in (("engine-0", "detokenizer-1"), ("engine-1", "detokenizer-0")):
        wide.detach(wide.engines[engine].streams[detokenizer])
    wide.flow()
    live = wide.ask(ask(max_tokens=60))
    wide.flow(tokens=3)
    route = route_of(live)
    wide.kill_detokenizer(route.detokenizer.name)
    wide.tick(clock.now)
    assert live.request_id in wide.dispatcher.unrouted, "its engine may be joining another"
    clock.now += BEAT_LIMIT + 0.1
    wide.tick(clock.now)
    assert route_of(live).engine != route.engine
    wide.settle()
    assert wide.ids() == expected(60)


def full(world: Ring, how: str) -> Callable[[], None]:
    """From now on the engine takes no more, as another request has its last place; returns what ends that."""
    engine = world.engines["engine-0"]
    if how == "ledgers":
        engine.registry._ledgers._max_entries = 1
        other = PeerId("other", 1)
        engine.registry.attach(other, 0.0)
        held = engine_pb2.Submit(request_id="1-1", epoch=1, prompt_token_ids=[5], max_tokens=1)
        engine.registry.submit(other, submission_of(held, MODEL, 0.0))
        return lambda: engine.registry.done(other, "1-1", 1)
    status = Status(Code.RESOURCE_EXHAUSTED, "the queue is full", retry_after_ms=100)
    add = engine.core.add
    engine.core.add = lambda core_id, request: engine.registry.refuse(core_id, status)  # type: ignore[method-assign, assignment]

    def empty() -> None:
        engine.core.add = add  # type: ignore[method-assign]

    return empty


@pytest.mark.parametrize(("delivered", "how"), [(0, "queue"), (7, "ledgers")])
def test_a_full_engine_does_not_end_what_a_client_resumes(
    delivered: int, how: str, world: Ring, clock: SimpleNamespace
) -> None:
    """It comes from another processor, so that no earlier route is known here; before its first token it has no ids."""
    resumed, new = ask(), ask(name="new")
    resumed.resume.choices.add(choice=0, token_ids=expected(delivered))
    resumed.resume.model_digest = MODEL_MESSAGE.model_digest
    empty = full(world, how)
    world.ask(resumed)
    world.ask(new)
    for _ in range(3):
        wait(world, clock, 2.0)
    (refused,) = world.events("choice_finished")
    assert refused.request_id == "new"
    assert refused.choice_finished.error.code == Code.RESOURCE_EXHAUSTED
    empty()
    clock.now += 2.0
    world.settle()
    assert world.ids() == expected(20)[delivered:]


def test_the_timeout_bounds_the_wait_of_a_resume_for_a_full_engine(world: Ring, clock: SimpleNamespace) -> None:
    world.dispatcher.route_timeout = 5.0
    request = ask()
    request.resume.choices.add(choice=0)
    full(world, "queue")
    world.ask(request)
    wait(world, clock, 4.0)
    assert not world.events("request_finished")
    wait(world, clock, 2.0)
    assert world.end().error.code == Code.UNAVAILABLE
