"""A prompt goes to the engine that has its prefix cached, and its Submit carries what is left of it."""

from __future__ import annotations

import time

import pytest
from ringline.engine.v1 import engine_pb2
from structlog.testing import capture_logs

from services.processor.metrics import Routing
from services.ring import routing_logic
from services.ring.errors import Code
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import (
    ask,
    engine_says,
    events,
    ids,
    processors_stream,
    route_of,
    sent_submits,
    settle,
)
from tests.services.ring.ring_simulation import RingSimulation

ENGINES = [f"engine-{index}" for index in range(4)]

PROMPT = "abcabcabcabcabcabcabcabc"


def ask_for(world: RingSimulation, name: str, text: str, tenant: str = "", max_tokens: int = 8) -> str:
    """Ask; the engine that the request was sent to."""
    request = ask(max_tokens, name=name)
    request.text = text
    return route_of(world.ask(request, tenant)).engine.name


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> RingSimulation:
    """Its prompts are short, so each token of them is worth more."""
    monkeypatch.setattr(routing_logic, "TOKENS_PER_REQUEST", 4)
    with capture_logs():
        return RingSimulation(ENGINES, ["detokenizer-0", "detokenizer-1"])


def test_prompts_with_a_common_prefix_go_to_one_engine(many: RingSimulation) -> None:
    engines = set()
    for number in range(8):
        engines.add(ask_for(many, str(number), PROMPT + str(number)))
        settle(many, 5)
    assert many.quiet
    assert len(engines) == 1
    assert Routing.of(many.routes).decisions == {"prefix": 7, "overload": 0, "load": 1}
    assert Routing.of(many.routes).loads == dict.fromkeys(ENGINES, 0)


def test_a_conversation_goes_on_where_it_was(many: RingSimulation) -> None:
    first = ask_for(many, "first", "abcdefgh", max_tokens=30)
    settle(many)
    answer = many.model.tokenizer.decode(ids(many))
    assert len(answer) > 2 * len("abcdefgh"), "it is most of what comes next"
    assert ask_for(many, "second", "abcdefgh" + answer + "more") == first
    assert Routing.of(many.routes).decisions["prefix"] == 1


def test_tenants_share_no_prefix_and_no_routes(many: RingSimulation) -> None:
    for tenant in ("one", "other"):
        ask_for(many, tenant, PROMPT, tenant)
        settle(many, 5)
    assert Routing.of(many.routes).decisions == {"prefix": 0, "overload": 0, "load": 2}


def test_requests_of_a_dead_engine_stay_together_at_another(many: RingSimulation) -> None:
    names = {ask_for(many, str(number), PROMPT + str(number), max_tokens=30) for number in range(3)}
    (engine,) = names
    many.flow(tokens=1)
    many.kill_engine(engine)
    many.heal()
    many.flow(tokens=1)
    taken = {route_of(live).engine.name for live in many.client.requests()}
    assert len(taken) == 1
    assert taken != {engine}
    assert ask_for(many, "next", PROMPT + "next") in taken
    settle(many)
    assert many.quiet


def test_an_engine_that_drains_gets_nothing_new_though_it_has_the_prompt(many: RingSimulation) -> None:
    engine = ask_for(many, "first", PROMPT)
    engine_says(many, engine, draining={})
    assert ask_for(many, "second", PROMPT) != engine


def test_an_engine_that_others_keep_busy_gets_less(many: RingSimulation) -> None:
    engine = ask_for(many, "first", PROMPT)
    engine_says(many, engine, load=engine_pb2.Load(running_choices=60, waiting_requests=20))
    assert ask_for(many, "second", PROMPT) != engine
    assert Routing.of(many.routes).decisions["overload"] == 1
    assert Routing.of(many.routes).loads[engine] == 80


def test_every_submit_carries_the_remaining_time(world: RingSimulation) -> None:
    call = world.ask(ask())
    assert not sent_submits(world)[0].HasField("timeout_ms")
    call.deadline = time.monotonic() + 1000.0
    world.kill_engine("engine-0")
    world.heal()
    processors_stream(world).write()
    for detokenizer_stream in world.streams():
        detokenizer_stream.write()
        detokenizer_stream.read()
    (submit,) = sent_submits(world)
    assert 900_000 < submit.timeout_ms <= 1_000_000
    assert submit.epoch == 2


def test_a_request_too_large_to_resubmit_ends_alone(world: RingSimulation) -> None:
    """Sent all the same, it would end the link for every request on it, again and again."""
    world.ask(ask())
    (submit,) = sent_submits(world)
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_engine("engine-0")
    world.heal()
    processors_stream(world).max_command_bytes = submit.ByteSize()  # but now it has grown by what was delivered
    world.ask(ask(name="beside"))
    settle(world)
    ended = {response.request_id: response.choice_finished for response in events(world, "choice_finished")}
    usages = {response.request_id: response.request_finished.usage for response in events(world, "request_finished")}
    assert ended["r"].error.code == Code.INVALID_ARGUMENT
    assert ended["r"].error.message.startswith("prompt: ")
    assert usages["r"].completion_tokens > 0
    assert ended["beside"].finish_reason == FinishReason.LENGTH
    assert world.quiet
