"""A prompt goes to the engine that has its prefix cached, and its Submit carries what is left of it."""

from __future__ import annotations

import time

import pytest
from ringline.engine.v1 import engine_pb2
from structlog.testing import capture_logs

from services.ring import routing_logic
from services.ring.errors import Code
from services.ring.events import FinishReason
from services.ring.routing_logic import Decision
from tests.services.processor.ring_requests import Ring, ask, route_of

ENGINES = [f"engine-{index}" for index in range(4)]

PROMPT = "abcabcabcabcabcabcabcabc"


def ask_for(world: Ring, name: str, text: str, tenant: str = "", max_tokens: int = 8) -> str:
    """Ask; the engine that the request was sent to."""
    request = ask(max_tokens, name=name)
    request.text = text
    return route_of(world.ask(request, tenant)).engine.name


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Ring:
    """Its prompts are short, so each token of them is worth more."""
    monkeypatch.setattr(routing_logic, "TOKENS_PER_REQUEST", 4)
    with capture_logs():
        return Ring(ENGINES, ["detokenizer-0", "detokenizer-1"])


def test_a_conversation_goes_on_where_it_was(many: Ring) -> None:
    first = ask_for(many, "first", "abcdefgh", max_tokens=30)
    many.settle()
    answer = many.model.tokenizer.decode(many.ids())
    assert len(answer) > 2 * len("abcdefgh"), "it is most of what comes next"
    assert ask_for(many, "second", "abcdefgh" + answer + "more") == first
    assert many.routes.decisions[Decision.PREFIX] == 1


def test_tenants_share_no_prefix_and_no_routes(many: Ring) -> None:
    for tenant in ("one", "other"):
        ask_for(many, tenant, PROMPT, tenant)
        many.settle(5)
    assert many.routes.decisions == {Decision.PREFIX: 0, Decision.OVERLOAD: 0, Decision.LOAD: 2}


def test_requests_of_a_dead_engine_stay_together_at_another(many: Ring) -> None:
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
    many.settle()
    assert many.quiet


def test_an_engine_that_drains_gets_nothing_new_though_it_has_the_prompt(many: Ring) -> None:
    engine = ask_for(many, "first", PROMPT)
    many.engine_says(engine, draining={})
    assert ask_for(many, "second", PROMPT) != engine


def test_an_engine_that_others_keep_busy_gets_less(many: Ring) -> None:
    engine = ask_for(many, "first", PROMPT)
    many.engine_says(engine, load=engine_pb2.Load(running_choices=60, waiting_requests=20))
    assert ask_for(many, "second", PROMPT) != engine
    assert many.routes.decisions[Decision.OVERLOAD] == 1
    assert many.routes.loads()[engine] == 80


def test_every_submit_carries_the_remaining_time(world: Ring) -> None:
    call = world.ask(ask())
    assert not world.sent_submits()[0].HasField("timeout_ms")
    call.deadline = time.monotonic() + 1000.0
    world.kill_engine("engine-0")
    world.heal()
    world.stream().write()
    for detokenizer_stream in world.streams():
        detokenizer_stream.write()
        detokenizer_stream.read()
    (submit,) = world.sent_submits()
    assert 900_000 < submit.timeout_ms <= 1_000_000
    assert submit.epoch == 2


def test_a_request_too_large_to_resubmit_ends_alone(world: Ring) -> None:
    """Sent all the same, it would end the link for every request on it, again and again."""
    world.ask(ask())
    (submit,) = world.sent_submits()
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_engine("engine-0")
    world.heal()
    world.stream().max_command_bytes = submit.ByteSize()  # but now it has grown by what was delivered
    world.ask(ask(name="beside"))
    world.settle()
    ended = {response.request_id: response.choice_finished for response in world.events("choice_finished")}
    usages = {response.request_id: response.request_finished.usage for response in world.events("request_finished")}
    assert ended["r"].error.code == Code.INVALID_ARGUMENT
    assert ended["r"].error.message.startswith("prompt: ")
    assert usages["r"].completion_tokens > 0
    assert ended["beside"].finish_reason == FinishReason.LENGTH
    assert world.quiet
