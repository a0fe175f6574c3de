"""The live page's numbers: rates and quantiles as they are, bounded, and nothing about single requests."""

import json
import random
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.cli.commands._live_page import read_live_page
from services.cli.commands.status import ServiceStatus, StackStatus, stack_text
from services.common.telemetry.metrics_endpoint import MetricsEndpoint, server_header
from services.processor.gateways import Gateways
from services.processor.link_events import LinkEvents
from services.processor.linked_peers import MAX_EVENTS, LinkedPeers
from services.processor.live_page.pages import pages
from services.processor.live_page.snapshot import HISTORY, LivePageSnapshot, quantile
from services.processor.metrics import ProcessorMetrics, ProcessorReading
from services.ring.identity import PeerId
from services.ring.routing_logic import Routes
from tests.services.processor.model_specs import learned
from tests.services.processor.ring_requests import Ring, ask
from tests.services.ring.ring_simulation import MODEL_MESSAGE

ENGINE, DETOKENIZER, OTHER = PeerId("engine-0", 1), PeerId("detokenizer-0", 2), PeerId("processor-1", 3)


class Link:
    address = "unix:nowhere"
    zone = None


def message(peer: PeerId) -> link_pb2.Peer:
    return link_pb2.Peer(name=peer.name, incarnation=peer.incarnation)


@pytest.fixture
def routes() -> Routes:
    return Routes(random.Random(0))


@pytest.fixture
def peers(routes: Routes) -> LinkedPeers:
    return LinkedPeers(routes)


@pytest.fixture
def links(routes: Routes, peers: LinkedPeers) -> LinkEvents:
    return LinkEvents(learned(MODEL_MESSAGE), routes, peers, Mock(), Mock(), Mock())


def joined(links: LinkEvents) -> None:
    links.engine_up(Link(), ENGINE, MODEL_MESSAGE)
    links.detokenizer_up(DETOKENIZER, "unix:elsewhere")
    attached = link_pb2.PeerChanges(
        revision=1, reset=True, added=[message(DETOKENIZER), message(OTHER), message(PeerId("me", 9))]
    )
    links.engine_frame(Link(), ENGINE, engine_pb2.AttachResponse(peers=attached))
    load = detokenizer_pb2.Load(live_requests=4, decoded_tokens=70)
    heard = link_pb2.PeerChanges(revision=1, reset=True, added=[message(ENGINE)])
    links.detokenizer_frame(DETOKENIZER, detokenizer_pb2.SubscribeResponse(load=load, engines=heard))


def told(snapshot: LivePageSnapshot) -> dict:
    return json.loads(snapshot.json())


def test_a_snapshot_has_the_peers_and_their_rates(peers, routes, links) -> None:
    metrics = ProcessorMetrics()
    snapshot = LivePageSnapshot("me", peers, routes, metrics, Gateways(), ())
    joined(links)
    for second in range(4):
        load = engine_pb2.Load(
            running_choices=3,
            waiting_requests=1,
            kv_usage=0.5,
            blocks_total=64,
            states_total=32,
            generated_tokens=100 * second,
        )
        links.engine_frame(Link(), ENGINE, engine_pb2.AttachResponse(load=load))
        metrics.tokens(50, 0.1)
        for _ in range(2):  # of one request
            metrics.choice_ended("stop")
        metrics.request_ended("", 3, 50, 0.1, None)
        metrics.first_token(0.03)
        snapshot.tick(float(second), ProcessorReading(live_requests=7, waiting_requests=2), serving=True)
        snapshot.tick(second + 0.5, ProcessorReading(), serving=False)  # not due yet
    ring = told(snapshot)
    assert (ring["name"], ring["serving"], ring["live_requests"], ring["waiting_requests"]) == ("me", True, 7, 2)
    assert ring["tokens_per_second"] == pytest.approx(51)
    assert ring["requests_per_second"] == pytest.approx(1)
    assert 0.02 < ring["first_token"]["p50"] <= 0.04
    (engine,), (detokenizer,) = ring["engines"], ring["detokenizers"]
    assert (
        engine | {"tokens_per_second": 100.0, "kv_usage": 0.5, "running_choices": 3, "linked": ["detokenizer-0"]}
        == engine
    )
    assert (engine["kv_blocks"], engine["states"]) == (64, 32)
    assert (detokenizer["requests"], detokenizer["state"]) == (4, "serving")
    assert ring["others"] == ["processor-1"]
    assert ring["history"]["live_requests"] == [7] * 4


def test_the_page_and_status_show_the_same_numbers_of_requests_and_choices(world: Ring) -> None:
    """Of one request with two choices."""
    world.ask(ask(n=2))
    world.flow(tokens=1)
    load = engine_pb2.Load(running_choices=world.routes.loads()["engine-0"])
    stream = world.stream()
    world.link_events.engine_frame(stream, stream.engine.me, engine_pb2.AttachResponse(load=load))  # type: ignore[arg-type]
    snapshot = LivePageSnapshot("me", world.peers, world.routes, world.metrics, world.gateways, world.intake.streams)
    live, waiting = len(world.in_flight), world.backlog.num_waiting
    snapshot.tick(0.0, ProcessorReading(live_requests=live, waiting_requests=waiting), serving=True)
    endpoint = MetricsEndpoint(CollectorRegistry(), "127.0.0.1", 0, pages(snapshot), name=server_header("processor"))
    try:
        page = read_live_page("unix:nowhere", f"http://127.0.0.1:{endpoint.port}/metrics")
    finally:
        endpoint.close()
    fields = {field.name: getattr(load, field.name) for field in load.DESCRIPTOR.fields}
    engine = ServiceStatus("engine", "unix:engine", "SERVING", load=fields)
    processor = ServiceStatus("processor", "unix:processor", "SERVING", page=page)
    text = stack_text(StackStatus("here", [engine, processor]))
    assert "choices running 2, requests waiting 0" in text
    assert "requests live 1, requests waiting 0" in text
    ring = told(snapshot)
    (shown,) = ring["engines"]
    assert (shown["running_choices"], shown["waiting_requests"]) == (2, 0)
    assert (ring["live_requests"], ring["waiting_requests"]) == (1, 0)
    html = pages(snapshot)["/"].body().decode()
    assert all(f'"{words}"' in html for words in ("choices running", "requests live", "requests waiting"))


def test_a_restarted_peer_has_no_negative_rate(peers, routes, links) -> None:
    snapshot = LivePageSnapshot("me", peers, routes, ProcessorMetrics(), Gateways(), ())
    joined(links)
    for second, tokens in enumerate((1000, 2000, 10, 20)):
        load = engine_pb2.Load(generated_tokens=tokens)
        links.engine_frame(Link(), ENGINE, engine_pb2.AttachResponse(load=load))
        snapshot.tick(float(second), ProcessorReading(), serving=True)
    assert told(snapshot)["engines"][0]["tokens_per_second"] == 10


def test_losses_are_events_and_old_events_are_forgotten(peers, routes, links) -> None:
    snapshot = LivePageSnapshot("me", peers, routes, ProcessorMetrics(), Gateways(), ())
    for _ in range(MAX_EVENTS):
        joined(links)
        links.detokenizer_frame(DETOKENIZER, detokenizer_pb2.SubscribeResponse(draining=link_pb2.Draining(grace_ms=1)))
        links.detokenizer_down(DETOKENIZER)
        links.engine_down(Link(), ENGINE)
    for second in range(2 * HISTORY):
        snapshot.tick(float(second), ProcessorReading(), serving=True)
    ring = told(snapshot)
    assert [(event["name"], event["what"]) for event in ring["events"]][-2:] == [
        ("detokenizer-0", "left"),
        ("engine-0", "lost"),
    ]
    assert len(ring["events"]) == MAX_EVENTS
    assert len(ring["history"]["tokens_per_second"]) == HISTORY
    assert ring["engines"] == ring["detokenizers"] == []
    assert peers.losses == {"engine": MAX_EVENTS, "detokenizer": 0}


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 1))
def test_a_quantile_lies_in_its_bucket(counts, share) -> None:
    bounds = (1.0, 2.0, 4.0)
    value = quantile(bounds, counts, share)
    if not sum(counts):
        assert value is None
        return
    ordered = [index for index, count in enumerate(counts) for _ in range(count)]
    bucket = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
    low, high = (0.0, *bounds)[bucket], (*bounds, 4.0)[bucket]
    assert low <= value <= high or value == pytest.approx(low)
