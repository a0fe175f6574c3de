"""The linked engines and detokenizers: their load, the peers attached to them, and their liveness.

``LinkEvents`` keeps them up to date; ``services.ring.routing_logic`` has the state by which routes are chosen.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2

from services.common.links.engine_link import EngineLink
from services.ring.attached_peers import PeerList
from services.ring.identity import PeerId
from services.ring.liveness import Liveness
from services.ring.model_generations import Generation
from services.ring.routing_logic import Needs, Route, Routes
from text_core.pictures.prepared import PreparedItem

MAX_EVENTS = 30
"""Number of events kept for the live page."""


@dataclass(frozen=True, slots=True)
class KnownAddresses:
    """Where the processor looks for its peers."""

    engines: Collection[str] = ()
    detokenizers: Collection[str] = ()


@dataclass(slots=True, eq=False)
class LinkedPeer:
    """An engine or a detokenizer while the link to it is up."""

    service: str
    """engine or detokenizer."""
    peer: PeerId
    address: str
    liveness: Liveness = field(default_factory=lambda: Liveness(time.monotonic()), init=False)
    draining: bool = field(default=False, init=False)
    suspected: bool = field(default=False, init=False)
    attached: PeerList = field(default_factory=PeerList, init=False)
    """For an engine: the peers attached to it. For a detokenizer: the engines whose frames it receives."""


@dataclass(slots=True, eq=False)
class LinkedEngine(LinkedPeer):
    """An engine."""

    link: EngineLink
    numerics: str
    generation: Generation
    serves_adapters: bool = False
    load: engine_pb2.Load = field(default_factory=engine_pb2.Load, init=False)
    """Its latest load report."""


@dataclass(slots=True, eq=False)
class LinkedDetokenizer(LinkedPeer):
    """A detokenizer."""

    load: detokenizer_pb2.Load = field(default_factory=detokenizer_pb2.Load, init=False)
    """Its latest load report."""


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """Something that happened to a peer."""

    service: str
    """engine or detokenizer."""
    name: str
    what: str
    """joined, left (after a drain), lost, silent or heard (after silence)."""
    requests: int = 0
    """Number of this processor's requests at the peer."""
    at: float = field(default_factory=time.time)
    """Seconds since 1970."""


class LinkedPeers:
    """All linked peers."""

    def __init__(self, routes: Routes, known: Callable[[], KnownAddresses] = KnownAddresses) -> None:
        """``known``: where peers are looked for."""
        self._routes = routes
        self._known = known
        self.engines: dict[PeerId, LinkedEngine] = {}
        self.detokenizers: dict[PeerId, LinkedDetokenizer] = {}
        self.events: deque[PeerEvent] = deque(maxlen=MAX_EVENTS)
        """The latest events, the newest last."""
        self.partitioned: dict[Route, float] = {}
        """Pairs whose detokenizer reports that it receives nothing from the engine, with the report's time."""
        self.losses: Counter[str] = Counter(engine=0, detokenizer=0)
        """Peers lost without having drained, keyed by service."""

    @property
    def suspects(self) -> frozenset[PeerId]:
        """Peers suspected by their ``Liveness``: they get no new requests, and their requests may move to others."""
        return frozenset(node.peer for node in self.all() if node.suspected)

    def all(self) -> list[LinkedPeer]:
        return [*self.engines.values(), *self.detokenizers.values()]

    def send(self, engine: PeerId, command: engine_pb2.Command) -> None:
        """Send a command; it is lost with the engine's link."""
        if (node := self.engines.get(engine)) is not None:
            node.link.send((command,))

    def submit(self, engine: PeerId, submit: engine_pb2.Submit, pictures: Sequence[PreparedItem]) -> None:
        """Send a Submit behind its pictures; it is lost with the engine's link."""
        if (node := self.engines.get(engine)) is not None:
            node.link.submit(submit, pictures)

    def done(self, engine: PeerId, done: engine_pb2.Done, *, hurries: bool = True) -> None:
        """Send Done, and no Submit of the request that still waits for its pictures.

        ``hurries``: the engine may still compute the request.
        """
        if (node := self.engines.get(engine)) is not None:
            node.link.media.withdraw(done.request_id)
            node.link.send((engine_pb2.Command(done=done),), hurries=hurries)

    def pictures_missed(self, engine: PeerId, digests: Iterable[bytes]) -> None:
        """The engine does not hold these pictures, as it says."""
        if (node := self.engines.get(engine)) is not None:
            node.link.media.missed(digests)

    def missing(self) -> KnownAddresses:
        """Known addresses without a linked peer."""
        known = self._known()
        engines = {node.address for node in self.engines.values()}
        detokenizers = {node.address for node in self.detokenizers.values()}
        return KnownAddresses(sorted(set(known.engines) - engines), sorted(set(known.detokenizers) - detokenizers))

    def no_route_reason(self, needs: Needs | None = None) -> str | None:
        """Why no request can be routed, in words for clients, thus without addresses; None if requests can be.

        ``needs``: a request's; None: no needs.
        """
        if self._routes.any_joined(needs or Needs()):
            return None
        if self._routes.any_joined():
            lacking = ", ".join(sorted(needs.engine | needs.detokenizer)) if needs else ""
            if needs and needs.adapter is not None and self._routes.any_joined(replace(needs, adapter=None)):
                lacking = str(needs.adapter)
            return f"no engine and detokenizer that are attached have what it needs ({lacking})"
        missing = self.missing()
        engines, detokenizers = len(self.engines), len(self.detokenizers)
        of_engines = f"{engines} of {engines + len(missing.engines)}"
        of_detokenizers = f"{detokenizers} of {detokenizers + len(missing.detokenizers)}"
        if engines and detokenizers:
            return (
                f"{of_engines} engines and {of_detokenizers} detokenizers are attached, but no pair takes requests: "
                "they are draining, silent, or not linked to each other"
            )
        if engines:
            return f"no detokenizer is attached ({of_detokenizers})"
        if detokenizers:
            return f"no engine is attached ({of_engines})"
        return f"no engine is attached ({of_engines}), and no detokenizer ({of_detokenizers})"
