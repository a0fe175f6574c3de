"""The processor's peers: links to engines and detokenizers, whether they live, and which pairs are joined."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.peers.engine_link import EngineLink
from services.peers.redial import LinkRefused
from services.processor.dashboard.events import EventLog
from services.processor.metrics import Routing
from services.processor.served_models import ServedModels, generation_of
from services.ring.generations import Generation
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_INTERVAL, Liveness, step_limit
from services.ring.peer_list import PeerList
from services.ring.prefixes import Prefixes
from services.ring.routes import Route, Routes
from services.rpc.protobuf import peer_changes_from_proto

log = structlog.get_logger(__name__)

_ASLEEP = 2 * BEAT_INTERVAL
"""Seconds between two looks at the peers after which it was this process that stood still, not they."""


MAX_OTHERS = 16
"""Names that are told of those who are attached beside the peers."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """An engine or a detokenizer."""

    service: str
    name: str
    state: str
    """serving, draining or silent."""
    tokens: int
    """Computed or decoded since its start."""
    own: int
    """Requests of this processor that it has."""
    linked: tuple[str, ...]
    """Of an engine: the detokenizers that it is joined with."""
    load: Mapping[str, float]
    """The rest of what it reported."""


def engine_view(name: str, state: str, load: engine_pb2.Load, own: int, linked: tuple[str, ...]) -> PeerView:
    """Of an engine."""
    shown = {
        "running": load.running_choices,
        "waiting": load.waiting_requests,
        "kv_usage": round(load.kv_usage, 4),
        "kv_blocks": load.blocks_total,
        "preemptions": load.preemptions,
        "prefix_hits": load.prefix_hits / load.prefix_queries if load.prefix_queries else 0.0,
    }
    return PeerView("engine", name, state, load.generated_tokens, own, linked, shown)


def detokenizer_view(name: str, state: str, load: detokenizer_pb2.Load, own: int) -> PeerView:
    """Of a detokenizer."""
    return PeerView("detokenizer", name, state, load.decoded_tokens, own, (), {"requests": load.live_requests})


class PeerEvents(Protocol):
    """Whoever owns the requests."""

    def routes_changed(self) -> None:
        """Pairs may have been joined: stranded requests may go on."""

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> None:
        """The link to an engine ended; ``crashed`` unless it was draining, or had hung."""

    def detokenizer_lost(self, detokenizer: PeerId) -> None:
        """The subscription ended."""

    def rejected(self, rejection: link_pb2.Rejection) -> None:
        """An engine refused a command."""

    def text(self, outputs: detokenizer_pb2.TextOutputs) -> None:
        """A detokenizer sent text."""


@dataclass(slots=True, eq=False)
class _Engine:
    peer: PeerId
    link: EngineLink
    liveness: Liveness
    numerics: str
    draining: bool = False
    suspected: bool = False
    load: engine_pb2.Load = field(default_factory=engine_pb2.Load)
    """As it last reported."""
    attached: PeerList = field(default_factory=PeerList)
    """Who is attached to it."""


@dataclass(slots=True, eq=False)
class _Detokenizer:
    peer: PeerId
    liveness: Liveness
    draining: bool = False
    suspected: bool = False
    load: detokenizer_pb2.Load = field(default_factory=detokenizer_pb2.Load)
    engines: PeerList = field(default_factory=PeerList)
    """Those that it hears."""


class Peers:
    """Implements ``EngineOwner`` and ``DetokenizerOwner``."""

    def __init__(self, vocabularies: ServedModels, rng: random.Random) -> None:
        self.events: PeerEvents
        """Set before anything is dialled."""
        self.vocabularies = vocabularies
        self._routes = Routes(rng)
        vocabularies.preferred = self._routes.preferred
        self._engines: dict[PeerId, _Engine] = {}
        self._detokenizers: dict[PeerId, _Detokenizer] = {}
        self._watched_at: float | None = None
        self.chronicle = EventLog()
        self.parted: dict[Route, float] = {}
        """Pairs between which nothing gets through, by the detokenizer's word, and since when."""
        self.losses: Counter[str] = Counter(engine=0, detokenizer=0)
        """Peers that were lost without having drained, by service."""
        self.suspects: frozenset[PeerId] = frozenset()
        """Who gives no sign of life: what they have may go elsewhere, and nothing new goes to them."""

    def choose(
        self,
        request_id: str,
        generation: Generation,
        prefixes: Prefixes,
        *,
        choices: int,
        engine: PeerId | None = None,
    ) -> Route | None:
        """A pair for a request, on ``engine`` if given; None if no joined pair of its generation takes work."""
        return self._routes.choose(request_id, generation, prefixes, choices=choices, engine=engine)

    def release(self, request_id: str, computed: Prefixes | None) -> None:
        """A request has ended; ``computed`` is what its engine has of it, if it has got anywhere."""
        self._routes.release(request_id, computed)

    @property
    def routing(self) -> Routing:
        """How requests were routed so far."""
        routes = self._routes
        reasons = {decision.value: count for decision, count in routes.decisions.items()}
        return Routing(reasons, routes.loads(), len(routes.prefixes))

    def has_engine(self, engine: PeerId) -> bool:
        """Whether this life of the engine is attached to."""
        return engine in self._engines

    def numerics(self, engine: PeerId) -> str:
        """The engine's numerics."""
        return self._engines[engine].numerics

    def max_command_bytes(self, engine: PeerId) -> int:
        """The largest command that the engine takes."""
        return self._engines[engine].link.max_command_bytes

    def send(self, engine: PeerId, commands: Iterable[engine_pb2.Command]) -> None:
        """Send commands; they are lost with the engine if it is."""
        if (node := self._engines.get(engine)) is not None:
            node.link.send(commands)

    @property
    def revision(self) -> int:
        """Raised whenever a request that found no route may find one, or another."""
        return self._routes.revision

    @property
    def seats(self) -> int | None:
        """Choices that engines compute at a time; None where there are no engines, or it is not known."""
        return self._routes.seats()

    @property
    def ready(self) -> bool:
        """Whether any pair is joined."""
        return self._routes.any_joined()

    def counts(self) -> tuple[int, int]:
        """Engines and detokenizers that are linked."""
        return len(self._engines), len(self._detokenizers)

    # For people

    def views(self) -> list[PeerView]:
        """Every peer that is linked, in the order of their names."""
        requests, joined = self._routes.requests(), self._routes.joined()
        views = [
            engine_view(peer.name, _state(node), node.load, requests[peer], joined.get(peer.name, ()))
            for peer, node in self._engines.items()
        ]
        for peer, node in self._detokenizers.items():
            views.append(detokenizer_view(peer.name, _state(node), node.load, requests[peer]))
        return sorted(views, key=lambda view: view.name)

    def others(self, me: str) -> list[str]:
        """Who else is attached to the engines: other processors, mostly."""
        known = {me, *(peer.name for peer in self._detokenizers)}
        return sorted({peer.name for peer in self._routes.attached()} - known)[:MAX_OTHERS]

    # EngineOwner

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Learn what the engine serves, and who it is, before attaching to it."""
        return await self.vocabularies.learn(stub)

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """Attached."""
        self.vocabularies.engine_up(engine, model)
        self._engines[engine] = _Engine(engine, link, Liveness(time.monotonic()), model.numerics)
        self._routes.engine_up(engine, generation_of(model), model.max_num_seqs or None)
        self.chronicle.note("engine", engine.name, "joined")
        log.info("engine attached", engine=engine.name, address=link.address)
        self._part(engine)

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        """Load, peers, refusals; text comes from the detokenizer."""
        node = self._engines[engine]
        if frame.HasField("load"):
            load = node.load = frame.load
            busy = load.running_choices > 0 or load.waiting_requests > 0
            timeout = load.step_timeout_ms / 1000 or step_limit(load.longest_step_ms / 1000)
            node.liveness.beat(time.monotonic(), load.steps, busy=busy, step_timeout=timeout)
            self._routes.engine_load(engine, load.running_choices, load.waiting_requests, load.kv_usage)
        if frame.HasField("peers"):
            self._routes.engine_peers(engine, _changed(node.attached, frame.peers))
            self.events.routes_changed()
        if frame.HasField("draining"):
            node.draining = True
            self._routes.take_work(engine, False)
        for rejection in frame.rejections:
            self.events.rejected(rejection)

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        """The stream ended."""
        node = self._engines.pop(engine)
        what = "left" if node.draining else "lost"
        self.chronicle.note("engine", engine.name, what, self._routes.requests()[engine])
        self._routes.engine_down(engine)
        self.vocabularies.engine_down(engine)
        self.losses["engine"] += not node.draining
        log.info("engine lost", engine=engine.name, address=link.address)
        self.events.engine_lost(engine, crashed=not (node.draining or node.suspected))
        self._part(engine)

    # DetokenizerOwner

    def detokenizer_up(self, detokenizer: PeerId, address: str) -> None:
        """Subscribed."""
        self._detokenizers[detokenizer] = _Detokenizer(detokenizer, Liveness(time.monotonic()))
        self._routes.detokenizer_up(detokenizer)
        self.chronicle.note("detokenizer", detokenizer.name, "joined")
        log.info("detokenizer subscribed", detokenizer=detokenizer.name, address=address)
        self.events.routes_changed()

    def detokenizer_frame(self, detokenizer: PeerId, frame: detokenizer_pb2.SubscribeResponse) -> None:
        """Load and text."""
        node = self._detokenizers[detokenizer]
        if frame.HasField("load"):
            node.load = frame.load
            node.liveness.beat(time.monotonic())
            self._routes.detokenizer_load(detokenizer, frame.load.live_requests)
        if frame.HasField("engines"):
            self._routes.detokenizer_hears(detokenizer, _changed(node.engines, frame.engines))
            self._part(detokenizer)
        if frame.HasField("draining"):
            node.draining = True
            self._routes.take_work(detokenizer, False)
        if frame.HasField("outputs"):
            self.events.text(frame.outputs)

    def _part(self, peer: PeerId) -> None:
        """A peer came or went, or, a detokenizer, hears other engines than before."""
        parted = self._routes.parted(peer)
        before = {route for route in self.parted if peer in (route.engine, route.detokenizer)}
        if parted == before:
            return
        for route in before - parted:
            del self.parted[route]
        now = time.monotonic()
        self.parted.update(dict.fromkeys(parted - before, now))
        self.events.routes_changed()

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        """The stream ended."""
        draining = self._detokenizers.pop(detokenizer).draining
        self.losses["detokenizer"] += not draining
        requests = self._routes.requests()[detokenizer]
        self.chronicle.note("detokenizer", detokenizer.name, "left" if draining else "lost", requests)
        self._routes.detokenizer_down(detokenizer)
        log.info("detokenizer lost", detokenizer=detokenizer.name)
        self.events.detokenizer_lost(detokenizer)
        self._part(detokenizer)

    # Liveness

    def watch(self, now: float) -> None:
        """Suspect who gives no sign of life, and trust again who does. Call a few times a second."""
        changed = False
        nodes: list[_Engine | _Detokenizer] = [*self._engines.values(), *self._detokenizers.values()]
        asleep = 0.0 if self._watched_at is None else now - self._watched_at
        self._watched_at = now
        for node in nodes:
            if asleep > _ASLEEP:
                node.liveness.forgive(asleep)
            reason = node.liveness.suspicion(now)
            if (reason is not None) != node.suspected:
                node.suspected = reason is not None
                changed |= not node.suspected
                self._routes.take_work(node.peer, not node.suspected and not node.draining)
                service = "engine" if isinstance(node, _Engine) else "detokenizer"
                requests = self._routes.requests()[node.peer]
                self.chronicle.note(service, node.peer.name, "silent" if reason else "heard", requests)
                log.warning("peer suspected" if reason else "peer trusted again", peer=node.peer.name, reason=reason)
        self.suspects = frozenset(node.peer for node in nodes if node.suspected)
        if changed:
            self.events.routes_changed()


def _state(node: _Engine | _Detokenizer) -> str:
    return "silent" if node.suspected else "draining" if node.draining else "serving"


def _changed(peers: PeerList, message: link_pb2.PeerChanges) -> frozenset[PeerId]:
    try:
        return peers.apply(peer_changes_from_proto(message))
    except ValueError as error:
        raise LinkRefused(str(error)) from None
