"""Which (engine, detokenizer) pairs may carry a request: joined ones, alive, taking work.

A pair is joined when the engine says that this very life of the detokenizer is attached to it, and the
detokenizer has acknowledged this processor's subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from services.ring.identity import PeerId


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request runs and who turns its ids into text."""

    engine: PeerId
    detokenizer: PeerId


@dataclass(slots=True)
class _Node:
    peer: PeerId
    load: int = 0
    """Requests it holds, by its own last word."""
    assigned: int = 0
    """Requests routed to it since then."""
    taking: bool = True
    attached: frozenset[PeerId] = field(default_factory=frozenset)


class Routes:
    """What the processor knows of its peers."""

    def __init__(self) -> None:
        self._engines: dict[str, _Node] = {}
        self._detokenizers: dict[str, _Node] = {}

    def engine_up(self, peer: PeerId) -> None:
        """An engine welcomed this processor."""
        self._engines[peer.name] = _Node(peer)

    def engine_down(self, peer: PeerId) -> None:
        """The link to this life of an engine ended."""
        if (node := self._engines.get(peer.name)) is not None and node.peer == peer:
            del self._engines[peer.name]

    def engine_peers(self, engine: PeerId, attached: Iterable[PeerId]) -> None:
        """An engine told who is attached to it."""
        if (node := self._engines.get(engine.name)) is not None and node.peer == engine:
            node.attached = frozenset(attached)

    def detokenizer_up(self, peer: PeerId) -> None:
        """A detokenizer acknowledged the subscription."""
        self._detokenizers[peer.name] = _Node(peer)

    def detokenizer_down(self, peer: PeerId) -> None:
        """The subscription at this life of a detokenizer ended."""
        if (node := self._detokenizers.get(peer.name)) is not None and node.peer == peer:
            del self._detokenizers[peer.name]

    def report(self, peer: PeerId, load: int) -> None:
        """A peer told how many requests it holds."""
        for node in self._nodes(peer):
            node.load, node.assigned = load, 0

    def take_work(self, peer: PeerId, taking: bool) -> None:
        """Whether a peer may get new work: not while it is draining or suspected."""
        for node in self._nodes(peer):
            node.taking = taking

    def any_joined(self) -> bool:
        """Whether any pair takes work."""
        return any(engine.taking for engine, _ in self._pairs())

    def choose(self, *, engine: PeerId | None = None) -> Route | None:
        """The least loaded joined pair that takes work, or None; the choice counts as load at once.

        ``engine``: the one that has the request; it may go on there even if nothing new is taken.
        """
        pairs = [(e, d) for e, d in self._pairs() if (e.taking if engine is None else e.peer == engine)]
        if not pairs:
            return None
        # The assigned counts break ties, so equal pairs take turns.
        chosen = min(pairs, key=lambda pair: tuple(node.load + node.assigned for node in pair))
        for node in chosen:
            node.assigned += 1
        return Route(chosen[0].peer, chosen[1].peer)

    def _pairs(self) -> Iterator[tuple[_Node, _Node]]:
        """Joined pairs whose detokenizer takes work."""
        for engine in self._engines.values():
            for detokenizer in self._detokenizers.values():
                if detokenizer.taking and detokenizer.peer in engine.attached:
                    yield engine, detokenizer

    def _nodes(self, peer: PeerId) -> Iterator[_Node]:
        for nodes in (self._engines, self._detokenizers):
            if (node := nodes.get(peer.name)) is not None and node.peer == peer:
                yield node
