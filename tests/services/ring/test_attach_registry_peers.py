"""Peers in the attach registry: how many it takes, and that it forgets those that left."""

from __future__ import annotations

import gc

import pytest

from services.ring.attach_registry import MAX_PEERS, AttachRegistry
from services.ring.errors import Code
from services.ring.identity import PeerId
from tests.services.ring.attach_harness import GRACE, code_of, submission


def test_so_many_peers_and_no_more_are_attached(registry: AttachRegistry) -> None:
    links = [registry.attach(PeerId(f"p{number}", 1), 0.0)[0] for number in range(MAX_PEERS)]
    assert code_of(lambda: registry.attach(PeerId("more", 1), 0.0))[0] is Code.RESOURCE_EXHAUSTED
    registry.attach(PeerId("p0", 2), 0.0)  # takes its own place
    registry.detach(links[1], 0.0)
    registry.attach(PeerId("more", 1), 0.0)


@pytest.mark.parametrize("superseded", [False, True])
def test_a_stream_that_is_over_holds_nothing(registry: AttachRegistry, superseded: bool) -> None:
    """gRPC may keep it for as long as its peer takes nothing."""
    peer = PeerId("p", 1)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission())
    (entry,) = registry._ledgers
    if superseded:
        registry.attach(PeerId("p", 2), 1.0)
    else:
        registry.detach(link, 1.0)
        registry.expire(1.0 + GRACE)
    assert registry.num_ledgers == 0
    assert not link.pending
    assert link.take() is None
    assert not [one for one in gc.get_referrers(entry) if type(one).__name__ == "_Cursor"]
