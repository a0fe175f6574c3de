"""Which peers get work, and which models are served side by side."""

from __future__ import annotations

import random
import time
from unittest.mock import Mock

import pytest
from ringline.engine.v1 import engine_pb2

from services.common.links.redial import LinkRefused
from services.common.rpc.shared_messages import status_from_proto
from services.processor.link_events import LinkEvents
from services.processor.peers import KnownAddresses, Peers
from services.processor.request import Request
from services.processor.served_models import TextCodec
from services.ring.errors import Code, Reason
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.routing_logic import Routes
from services.text.chat_templates import ChatTemplates
from tests.services.processor.model_specs import learned
from tests.services.processor.ring_requests import SEED, ask, end, events, expected, ids, processors_stream, settle
from tests.services.ring.ring_simulation import MAX_GENERATIONS, MODEL_MESSAGE, NEXT, PRESENT, RingSimulation


def hear(world: RingSimulation, **frame: object) -> None:
    """The engine says something."""
    stream = processors_stream(world)
    response = engine_pb2.AttachResponse(**frame)  # type: ignore[arg-type]
    world.link_events.engine_frame(stream, stream.engine.me, response)  # type: ignore[arg-type]


@pytest.mark.parametrize("draining", [False, True])
def test_an_engine_that_is_trusted_again_gets_work_unless_it_drains(world: RingSimulation, draining: bool) -> None:
    assert world.routes.any_joined()
    later = time.monotonic() + 2 * BEAT_LIMIT
    world.link_events.check_liveness(later)
    assert not world.routes.any_joined()
    hear(world, load=engine_pb2.Load())
    (detokenizer,) = world.peers._detokenizers.values()
    detokenizer.liveness.beat(time.monotonic())
    if draining:
        hear(world, draining={})
    world.link_events.check_liveness(time.monotonic())
    assert world.routes.any_joined() == (not draining)


def test_what_is_missing_is_counted_for_clients_and_named_for_operators() -> None:
    known = KnownAddresses(["unix:nowhere", "10.0.0.2:50061"], ["10.0.0.3:50071"])
    peers = Peers(Routes(random.Random(0)), lambda: known)
    links = LinkEvents(learned(MODEL_MESSAGE), peers, Mock())
    engine, detokenizer = PeerId("engine-0", 1), PeerId("detokenizer-0", 2)
    assert peers.no_route_reason() == "no engine is attached (0 of 2), and no detokenizer (0 of 1)"
    assert peers.missing() == KnownAddresses(["10.0.0.2:50061", "unix:nowhere"], ["10.0.0.3:50071"])
    links.detokenizer_up(detokenizer, "10.0.0.3:50071")
    assert peers.no_route_reason() == "no engine is attached (0 of 2)"
    links.engine_up(Mock(address="unix:nowhere"), engine, MODEL_MESSAGE)
    assert "1 of 2 engines and 1 of 1 detokenizers are attached, but no pair" in (peers.no_route_reason() or "")
    assert peers.missing() == KnownAddresses(["10.0.0.2:50061"], [])
    links.detokenizer_down(detokenizer)
    assert peers.no_route_reason() == "no detokenizer is attached (0 of 1)"


def test_where_requests_can_be_routed_nothing_is_missing(world: RingSimulation) -> None:
    assert world.peers.no_route_reason() is None


def roll_out(world: RingSimulation, *names: str) -> None:
    """These engines are replaced by such as serve the next model."""
    for name in names:
        world.kill_engine(name, NEXT)
    world.heal()
    world.flow()


def engine_of(world: RingSimulation, call: Request) -> str:
    assert call.route is not None
    return call.route.engine.name


def test_requests_finish_on_their_own_model_while_new_ones_go_to_the_next(wide: RingSimulation) -> None:
    old = wide.ask(ask())
    other = {"engine-0": "engine-1", "engine-1": "engine-0"}[engine_of(wide, old)]
    roll_out(wide, other)
    new = ask()
    new.request_id = "new"
    assert engine_of(wide, wide.ask(new)) == other
    settle(wide)
    ids = {"r": [], "new": []}  # type: dict[str, list[int]]
    for response in events(wide, "delta"):
        ids[response.request_id] += response.delta.token_ids
    assert ids == {
        "r": [PRESENT.token_at(SEED, 0, position) for position in range(20)],
        "new": [NEXT.token_at(SEED, 0, position) for position in range(len(ids["new"]))],
    }
    started = {response.request_id: response.started.model_digest for response in events(wide, "started")}
    assert started == {"r": PRESENT.digest, "new": NEXT.digest}
    assert wide.quiet


def test_a_request_waits_for_an_engine_of_its_own_model_and_goes_on_there(wide: RingSimulation) -> None:
    wide.ask(ask())
    wide.flow(tokens=2)
    wide.flow(tokens=2)
    roll_out(wide, "engine-0", "engine-1")
    settle(wide)
    assert 0 < len(ids(wide)) < 20, "the next model computes nothing of it"
    wide.kill_engine("engine-0", PRESENT)
    wide.heal()
    settle(wide)
    assert ids(wide) == expected(20)
    assert wide.quiet


def test_a_request_whose_model_is_gone_ends_and_says_so(wide: RingSimulation) -> None:
    wide.ask(ask())
    wide.flow(tokens=2)
    wide.flow(tokens=2)
    wide.failover._route_timeout = -1.0
    roll_out(wide, "engine-0", "engine-1")
    settle(wide)
    status = status_from_proto(end(wide).error)
    assert (status.code, status.reason) == (Code.UNAVAILABLE, Reason.MODEL_GONE)
    assert ids(wide) == expected(len(ids(wide)))
    assert wide.quiet
    assert [held.model.model_digest for held in wide.models._held.values()] == [NEXT.digest], "none is kept"


def test_a_rollback_makes_the_earlier_model_the_newest_again(wide: RingSimulation) -> None:
    for served in (NEXT, PRESENT):
        wide.kill_engine("engine-1", served)
        wide.heal()
        wide.flow()
        assert wide.model.model.model_digest == served.digest


def test_an_engine_with_one_model_too_many_is_not_linked(wide: RingSimulation) -> None:
    wide.ask(ask())  # a request of the present one, which keeps it
    stream = processors_stream(wide)
    for number in range(MAX_GENERATIONS - 1):
        wide.models.add(model := another(number), CODEC)
        wide.link_events.engine_up(stream, PeerId(model.name, model.incarnation), model)  # type: ignore[arg-type]
    with pytest.raises(LinkRefused, match=r"limit of 3 models \(--max-generations\) reached, all in use"):
        wide.models.add(another(9), CODEC)
    assert len(wide.models) == MAX_GENERATIONS
    wide.link_events.engine_down(stream, PeerId("engine-0", 1000))  # type: ignore[arg-type]
    wide.models.add(another(9), CODEC)


def test_an_engine_whose_model_was_dropped_before_it_was_linked_is_refused(world: RingSimulation) -> None:
    stream = processors_stream(world)
    for number in range(MAX_GENERATIONS):
        world.models.add(another(number), CODEC)
    with pytest.raises(LinkRefused, match="its model was dropped for later ones: limit of 3 models"):
        world.link_events.engine_up(stream, PeerId("engine-0", 1000), another(0))  # type: ignore[arg-type]


async def test_a_known_tokenizer_is_not_fetched_again(world: RingSimulation) -> None:
    class Stub:
        async def GetModel(self, request: engine_pb2.GetModelRequest, **call: float) -> engine_pb2.GetModelResponse:
            return another(1)

    await world.link_events.prepare(Stub())
    assert world.models.for_resume("", "another 1") is not None


CODEC = TextCodec(PRESENT.tokenizer, ChatTemplates({}))


def another(number: int) -> engine_pb2.GetModelResponse:
    """What an engine of yet another model says, which was started later than all the others."""
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(PRESENT.message)
    model.model_digest, model.name, model.incarnation = f"another {number}", f"engine-{number}", 1000 + number
    return model
