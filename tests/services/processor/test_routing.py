"""A prompt goes to the engine that has its prefix cached."""

from __future__ import annotations

import pytest
from ringline.engine.v1 import engine_pb2
from structlog.testing import capture_logs

from services.processor.metrics import Routing
from services.ring import routing_logic
from tests.services.processor.ring_requests import ask, ids, processors_stream, settle
from tests.services.ring.ring_simulation import RingSimulation

ENGINES = [f"engine-{index}" for index in range(4)]
PROMPT = "abcabcabcabcabcabcabcabc"


def ask_for(world: RingSimulation, name: str, text: str, tenant: str = "", max_tokens: int = 8) -> str:
    """Ask; the engine that the request was sent to."""
    request = ask(max_tokens=max_tokens)
    request.request_id, request.text = name, text
    world.ask(request, tenant)
    return engine_of(world)


def engine_of(world: RingSimulation) -> str:
    """Where the request that came last is."""
    *_, live = world.in_flight._requests.values()
    assert live.route is not None
    return live.route.engine.name


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
    taken = {live.route.engine.name for live in many.in_flight._requests.values() if live.route is not None}
    assert len(taken) == 1
    assert taken != {engine}
    assert ask_for(many, "next", PROMPT + "next") in taken
    settle(many)
    assert many.quiet


def test_an_engine_that_drains_gets_nothing_new_though_it_has_the_prompt(many: RingSimulation) -> None:
    engine = ask_for(many, "first", PROMPT)
    stream = processors_stream(many, engine)
    draining = engine_pb2.AttachResponse(draining={})
    many.link_events.engine_frame(stream, many.engines[engine].me, draining)  # type: ignore[arg-type]
    assert ask_for(many, "second", PROMPT) != engine


def test_an_engine_that_others_keep_busy_gets_less(many: RingSimulation) -> None:
    engine = ask_for(many, "first", PROMPT)
    stream = processors_stream(many, engine)
    load = engine_pb2.AttachResponse(load=engine_pb2.Load(running_choices=60, waiting_requests=20))
    many.link_events.engine_frame(stream, many.engines[engine].me, load)  # type: ignore[arg-type]
    assert ask_for(many, "second", PROMPT) != engine
    assert Routing.of(many.routes).decisions["overload"] == 1
    assert Routing.of(many.routes).loads[engine] == 80
