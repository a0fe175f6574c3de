"""What the engine's door does with peers: how many it takes, and that it keeps nothing of those that left."""

from __future__ import annotations

import gc

import pytest

from services.ring.attach_registry import MAX_PEERS, AttachRegistry
from services.ring.errors import Code
from services.ring.identity import PeerId
from tests.services.ring.attach_harness import GRACE, code_of, submission


def test_so_many_peers_and_no_more_are_attached(board: AttachRegistry) -> None:
    links = [board.attach(PeerId(f"p{number}", 1), 0.0)[0] for number in range(MAX_PEERS)]
    assert code_of(lambda: board.attach(PeerId("more", 1), 0.0))[0] is Code.RESOURCE_EXHAUSTED
    board.attach(PeerId("p0", 2), 0.0)  # takes its own place
    board.detach(links[1], 0.0)
    board.attach(PeerId("more", 1), 0.0)


@pytest.mark.parametrize("superseded", [False, True])
def test_a_stream_that_is_over_holds_nothing(board: AttachRegistry, superseded: bool) -> None:
    """gRPC may keep it for as long as its peer takes nothing."""
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    (entry,) = board._ledgers
    if superseded:
        board.attach(PeerId("p", 2), 1.0)
    else:
        board.detach(link, 1.0)
        board.expire(1.0 + GRACE)
    assert board.num_ledgers == 0
    assert not link.pending
    assert link.take() is None
    assert not [one for one in gc.get_referrers(entry) if type(one).__name__ == "_Cursor"]
