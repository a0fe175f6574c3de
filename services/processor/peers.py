"""The state of the linked engines and detokenizers: their load, the peers attached to them, and their liveness."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.common.links.engine_link import EngineLink
from services.common.links.redial import LinkRefused
from services.common.rpc.shared_messages import peer_changes_from_proto
from services.processor.recent_events import RecentEvents
from services.processor.served_models import generation_of
from services.ring.attached_peers import PeerList
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_INTERVAL, Liveness, step_limit
from services.ring.routing_logic import Route, Routes

log = structlog.get_logger(__name__)

_ASLEEP = 2 * BEAT_INTERVAL
"""If two liveness checks are more seconds apart, this process itself was suspended, not the peers."""
MAX_OTHERS = 16
"""The most names of other processes (attached to the engines) that the dashboard shows."""


@dataclass(frozen=True, slots=True)
class KnownAddresses:
    """Where the processor looks for its peers."""

    engines: Collection[str] = ()
    detokenizers: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer as the dashboard shows it."""

    service: str
    """engine or detokenizer."""
    name: str
    state: str
    """serving, draining or silent."""
    tokens: int
    """Tokens computed or decoded since the peer started."""
    own: int
    """This processor's requests at the peer."""
    linked: tuple[str, ...]
    """For an engine: the detokenizers that it is joined with."""
    load: Mapping[str, float]
    """The rest of its report, by the names of ``ringline.engine.v1.Load`` where it has them."""


def _engine_view(name: str, state: str, load: engine_pb2.Load, own: int, linked: tuple[str, ...]) -> PeerView:
    shown = {
        "running_choices": load.running_choices,
        "waiting_requests": load.waiting_requests,
        "kv_usage": round(load.kv_usage, 4),
        "kv_blocks": load.blocks_total,
        "preemptions": load.preemptions,
        "prefix_hits": load.prefix_hits / load.prefix_queries if load.prefix_queries else 0.0,
    }
    return PeerView("engine", name, state, load.generated_tokens, own, linked, shown)


def _detokenizer_view(name: str, state: str, load: detokenizer_pb2.Load, own: int) -> PeerView:
    return PeerView("detokenizer", name, state, load.decoded_tokens, own, (), {"requests": load.live_requests})


@dataclass(slots=True, eq=False)
class _Engine:
    peer: PeerId
    link: EngineLink
    liveness: Liveness
    numerics: str
    draining: bool = False
    suspected: bool = False
    load: engine_pb2.Load = field(default_factory=engine_pb2.Load)
    """Its latest load report."""
    attached: PeerList = field(default_factory=PeerList)
    """The peers attached to it."""


@dataclass(slots=True, eq=False)
class _Detokenizer:
    peer: PeerId
    address: str
    liveness: Liveness
    draining: bool = False
    suspected: bool = False
    load: detokenizer_pb2.Load = field(default_factory=detokenizer_pb2.Load)
    engines: PeerList = field(default_factory=PeerList)
    """The engines whose frames it receives."""


class Peers:
    """The linked peers. Each method of an event updates ``Routes`` as well."""

    def __init__(self, routes: Routes, known: Callable[[], KnownAddresses] = KnownAddresses) -> None:
        self._routes = routes
        self._known = known
        self._engines: dict[PeerId, _Engine] = {}
        self._detokenizers: dict[PeerId, _Detokenizer] = {}
        self._checked_at: float | None = None
        self.recent_events = RecentEvents()
        self.partitioned: dict[Route, float] = {}
        """Pairs whose detokenizer reports that it receives nothing from the engine, with the time of the report."""
        self.losses: Counter[str] = Counter(engine=0, detokenizer=0)
        """Peers lost without having drained, keyed by service."""
        self.suspects: frozenset[PeerId] = frozenset()
        """Peers suspected by their ``Liveness``: they get no new requests, and theirs may move to other peers."""

    def has_engine(self, engine: PeerId) -> bool:
        """Whether this incarnation of the engine is linked."""
        return engine in self._engines

    def numerics(self, engine: PeerId) -> str:
        """The numerics of an engine; empty if it is no longer linked."""
        return self._engines[engine].numerics if engine in self._engines else ""

    def max_command_bytes(self, engine: PeerId) -> int:
        """Size in bytes of the largest command that a linked engine accepts."""
        return self._engines[engine].link.max_command_bytes

    def send(self, engine: PeerId, command: engine_pb2.Command) -> None:
        """Send a command; it is lost with the engine's link."""
        if (node := self._engines.get(engine)) is not None:
            node.link.send((command,))

    def counts(self) -> tuple[int, int]:
        """Engines and detokenizers that are linked."""
        return len(self._engines), len(self._detokenizers)

    def missing(self) -> KnownAddresses:
        """Where it looks for peers and none is linked."""
        known = self._known()
        engines = {node.link.address for node in self._engines.values()}
        detokenizers = {node.address for node in self._detokenizers.values()}
        return KnownAddresses(sorted(set(known.engines) - engines), sorted(set(known.detokenizers) - detokenizers))

    def no_route_reason(self) -> str | None:
        """Why no request can be routed, in words for clients, which are not told addresses; None if requests can be."""
        if self._routes.any_joined():
            return None
        missing = self.missing()
        engines, detokenizers = len(self._engines), len(self._detokenizers)
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

    def views(self) -> list[PeerView]:
        """Every linked peer, ordered by name."""
        requests, joined = self._routes.requests(), self._routes.joined()
        views = [
            _engine_view(peer.name, _state(node), node.load, requests[peer], joined.get(peer.name, ()))
            for peer, node in self._engines.items()
        ]
        for peer, node in self._detokenizers.items():
            views.append(_detokenizer_view(peer.name, _state(node), node.load, requests[peer]))
        return sorted(views, key=lambda view: view.name)

    def others(self, own_name: str) -> list[str]:
        """Other processes attached to the engines: mostly other processors."""
        known = {own_name, *(peer.name for peer in self._detokenizers)}
        return sorted({peer.name for peer in self._routes.attached()} - known)[:MAX_OTHERS]

    # Engines

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        self._engines[engine] = _Engine(engine, link, Liveness(time.monotonic()), model.numerics)
        self._routes.engine_up(engine, generation_of(model), model.max_num_seqs or None)
        self.recent_events.add("engine", engine.name, "joined")
        log.info("engine attached", engine=engine.name, address=link.address)

    def engine_load(self, engine: PeerId, load: engine_pb2.Load) -> None:
        """An engine reported its load; the report is also its heartbeat."""
        node = self._engines[engine]
        node.load = load
        busy = load.running_choices > 0 or load.waiting_requests > 0
        timeout = load.step_timeout_ms / 1000 or step_limit(load.longest_step_ms / 1000)
        node.liveness.beat(time.monotonic(), load.steps, busy=busy, step_timeout=timeout)
        self._routes.engine_load(engine, load.running_choices, load.waiting_requests, load.kv_usage)

    def engine_peers(self, engine: PeerId, changes: link_pb2.PeerChanges) -> None:
        """An engine reported which processes are attached to it; raises ``LinkRefused`` for a broken report."""
        self._routes.engine_peers(engine, _apply(self._engines[engine].attached, changes))

    def engine_draining(self, engine: PeerId) -> None:
        self._engines[engine].draining = True
        self._routes.set_taking_work(engine, False)

    def engine_down(self, link: EngineLink, engine: PeerId) -> bool:
        """The link to an engine ended; returns whether that counts as a crash: it neither drained nor hung."""
        node = self._engines.pop(engine)
        what = "left" if node.draining else "lost"
        self.recent_events.add("engine", engine.name, what, self._routes.requests()[engine])
        self._routes.engine_down(engine)
        self.losses["engine"] += not node.draining
        log.info("engine lost", engine=engine.name, address=link.address)
        return not (node.draining or node.suspected)

    # Detokenizers

    def detokenizer_up(self, detokenizer: PeerId, address: str) -> None:
        self._detokenizers[detokenizer] = _Detokenizer(detokenizer, address, Liveness(time.monotonic()))
        self._routes.detokenizer_up(detokenizer)
        self.recent_events.add("detokenizer", detokenizer.name, "joined")
        log.info("detokenizer subscribed", detokenizer=detokenizer.name, address=address)

    def detokenizer_load(self, detokenizer: PeerId, load: detokenizer_pb2.Load) -> None:
        """A detokenizer reported its load; the report is also its heartbeat."""
        node = self._detokenizers[detokenizer]
        node.load = load
        node.liveness.beat(time.monotonic())
        self._routes.detokenizer_load(detokenizer, load.live_requests)

    def detokenizer_hears(self, detokenizer: PeerId, changes: link_pb2.PeerChanges) -> None:
        """A detokenizer reported whose frames it receives; raises ``LinkRefused`` for a broken report."""
        self._routes.detokenizer_hears(detokenizer, _apply(self._detokenizers[detokenizer].engines, changes))

    def detokenizer_draining(self, detokenizer: PeerId) -> None:
        self._detokenizers[detokenizer].draining = True
        self._routes.set_taking_work(detokenizer, False)

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        draining = self._detokenizers.pop(detokenizer).draining
        self.losses["detokenizer"] += not draining
        requests = self._routes.requests()[detokenizer]
        self.recent_events.add("detokenizer", detokenizer.name, "left" if draining else "lost", requests)
        self._routes.detokenizer_down(detokenizer)
        log.info("detokenizer lost", detokenizer=detokenizer.name)

    # Both

    def update_partitions(self, peer: PeerId) -> bool:
        """Update the partitioned pairs of a peer after any of its links changed; returns whether the pairs changed."""
        partitioned = self._routes.partitioned(peer)
        before = {route for route in self.partitioned if peer in (route.engine, route.detokenizer)}
        if partitioned == before:
            return False
        for route in before - partitioned:
            del self.partitioned[route]
        now = time.monotonic()
        self.partitioned.update(dict.fromkeys(partitioned - before, now))
        return True

    def check_liveness(self, now: float) -> bool:
        """Suspect peers without recent heartbeats or progress, and trust suspects again that have them.

        Returns whether any peer is trusted again. Call a few times a second.
        """
        trusted_again = False
        nodes: list[_Engine | _Detokenizer] = [*self._engines.values(), *self._detokenizers.values()]
        asleep = 0.0 if self._checked_at is None else now - self._checked_at
        self._checked_at = now
        for node in nodes:
            if asleep > _ASLEEP:
                node.liveness.forgive(asleep)
            reason = node.liveness.suspicion(now)
            if (reason is not None) != node.suspected:
                node.suspected = reason is not None
                trusted_again |= not node.suspected
                self._routes.set_taking_work(node.peer, not node.suspected and not node.draining)
                service = "engine" if isinstance(node, _Engine) else "detokenizer"
                requests = self._routes.requests()[node.peer]
                self.recent_events.add(service, node.peer.name, "silent" if reason else "heard", requests)
                log.warning("peer suspected" if reason else "peer trusted again", peer=node.peer.name, reason=reason)
        self.suspects = frozenset(node.peer for node in nodes if node.suspected)
        return trusted_again


def _state(node: _Engine | _Detokenizer) -> str:
    return "silent" if node.suspected else "draining" if node.draining else "serving"


def _apply(peers: PeerList, changes: link_pb2.PeerChanges) -> frozenset[PeerId]:
    try:
        return peers.apply(peer_changes_from_proto(changes))
    except ValueError as error:
        raise LinkRefused(str(error)) from None
