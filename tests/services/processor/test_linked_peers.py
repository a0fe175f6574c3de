"""What is missing for a route, as clients and operators are told."""

from __future__ import annotations

import random
from unittest.mock import Mock

from services.processor.link_events import LinkEvents
from services.processor.linked_peers import KnownAddresses, LinkedPeers
from services.ring.identity import PeerId
from services.ring.routing_logic import Routes
from tests.services.processor.model_specs import learned
from tests.services.processor.ring_requests import Ring
from tests.services.ring.ring_simulation import MODEL_MESSAGE


def test_what_is_missing_is_counted_for_clients_and_named_for_operators() -> None:
    known = KnownAddresses(["unix:nowhere", "10.0.0.2:50061"], ["10.0.0.3:50071"])
    peers = LinkedPeers(routes := Routes(random.Random(0)), lambda: known)
    links = LinkEvents(learned(MODEL_MESSAGE), routes, peers, Mock(), Mock(), Mock())
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


def test_where_requests_can_be_routed_nothing_is_missing(world: Ring) -> None:
    assert world.peers.no_route_reason() is None
