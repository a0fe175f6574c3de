"""A receiver that reads every change has the sender's list, however the sender's changes are gathered into messages."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.ring.attached_peers import PeerChange, PeerList, PeerListSender
from services.ring.identity import PeerId

peers = st.builds(PeerId, st.sampled_from(["a", "b", "c"]), st.integers(1, 2))


class PeerListMachine(RuleBasedStateMachine):
    @initialize(there=st.frozensets(peers))
    def begin(self, there: frozenset[PeerId]) -> None:
        self.there = set(there)
        self.sender, self.receiver = PeerListSender(there), PeerList()
        self.took = False

    @rule(peer=peers)
    def add(self, peer: PeerId) -> None:
        self.there.add(peer)
        self.sender.add(peer)

    @rule(peer=peers)
    def remove(self, peer: PeerId) -> None:
        self.there.discard(peer)
        self.sender.remove(peer)

    @rule()
    def tell(self) -> None:
        change = self.sender.take()
        assert change is not None or self.took, "the first message is sent even where nobody is there"
        if change is not None:
            assert change.reset == (not self.took)
            assert not (change.reset and change.removed)
            self.receiver.apply(change)
        self.took = True

    @invariant()
    def what_was_told_is_true(self) -> None:
        if getattr(self, "took", False) and not self.sender.pending:
            assert self.receiver.peers == self.there


TestPeerList = PeerListMachine.TestCase


def test_a_gap_is_noticed() -> None:
    receiver = PeerList()
    receiver.apply(PeerChange(1, reset=True, added=(PeerId("a", 1),), removed=()))
    with pytest.raises(ValueError, match=r"change 3 .* follows change 1"):
        receiver.apply(PeerChange(3, reset=False, added=(), removed=(PeerId("a", 1),)))
    assert receiver.peers == {PeerId("a", 1)}


def test_a_receiver_that_is_gone_is_told_nothing() -> None:
    sender = PeerListSender([PeerId("a", 1)])
    sender.clear()
    assert not sender.pending
    assert sender.take() is None
