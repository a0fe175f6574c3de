"""Handles the events of the links to engines and detokenizers.

``LinkedPeers`` and the routes are updated first, then the requests: ``Failover`` moves those affected.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.common.links.engine_link import EngineLink
from services.common.links.redial import LinkRefused
from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import adapter_from_proto, peer_changes_from_proto
from services.processor.failover import Failover
from services.processor.linked_peers import LinkedDetokenizer, LinkedEngine, LinkedPeer, LinkedPeers, PeerEvent
from services.processor.pooled_output import PooledOutput
from services.processor.served_models import ServedModels, generation_of
from services.processor.text_output import TextOutput
from services.ring.adapters import AdapterState
from services.ring.attached_peers import PeerList
from services.ring.identity import ADAPTERS, PeerId
from services.ring.liveness import BEAT_INTERVAL, step_limit
from services.ring.routing_logic import Routes

log = structlog.get_logger(__name__)

_ASLEEP = 2 * BEAT_INTERVAL
"""If two liveness checks are more seconds apart, this process itself was suspended, not the peers."""


class LinkEvents:
    """Implements ``EngineOwner`` and ``DetokenizerOwner``: every link of the process reports here."""

    def __init__(
        self,
        models: ServedModels,
        routes: Routes,
        peers: LinkedPeers,
        failover: Failover,
        text_output: TextOutput,
        pooled_output: PooledOutput,
    ) -> None:
        self._models = models
        self._routes = routes
        self._peers = peers
        self._failover = failover
        self._text_output = text_output
        self._pooled_output = pooled_output
        self._checked_at: float | None = None

    # EngineOwner

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        return await self._models.learn(stub)

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """The engine is attached; raises ``LinkRefused`` if its model was dropped meanwhile."""
        self._models.engine_up(engine, model)
        self._peers.engines[engine] = LinkedEngine(
            "engine",
            engine,
            link.address,
            link,
            model.numerics,
            generation_of(model),
            serves_adapters=ADAPTERS in model.capabilities,
        )
        capacity = model.max_num_seqs or None
        self._routes.engine_up(engine, generation_of(model), capacity, model.capabilities, link.zone)
        if ADAPTERS in model.capabilities:
            self._routes.adapters.attached(engine, generation_of(model))
        self._peers.events.append(PeerEvent("engine", engine.name, "joined"))
        log.info("engine attached", engine=engine.name, address=link.address, zone=link.zone)
        self._update_partitions(engine)

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        """Load, peers, draining, rejections and results of inputs; text comes from detokenizers."""
        node = self._peers.engines[engine]
        if frame.HasField("load"):
            load = node.load = frame.load
            busy = load.running_choices > 0 or load.waiting_requests > 0
            timeout = load.step_timeout_ms / 1000 or step_limit(load.longest_step_ms / 1000)
            node.liveness.beat(time.monotonic(), load.steps, busy=busy, step_timeout=timeout)
            self._routes.engine_load(engine, load.running_choices, load.waiting_requests, load.kv_usage)
        if frame.HasField("peers"):
            self._routes.engine_peers(engine, _apply(node.attached, frame.peers))
            self._failover.routes_changed()
        if frame.HasField("draining"):
            node.draining = True
            self._routes.set_taking_work(engine, False)
        if frame.HasField("media"):
            link.media.changed(frame.media.held, frame.media.dropped)
        if frame.HasField("adapters"):
            self._adapters_changed(engine, frame.adapters)
        for rejection in frame.rejections:
            self._failover.rejected(rejection)
        if frame.HasField("outputs"):
            self._pooled_output.receive(engine, frame.outputs)

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        node = self._peers.engines.pop(engine)
        self._lost(node)
        self._routes.engine_down(engine)
        self._routes.adapters.detached(engine)
        log.info("engine lost", engine=engine.name, address=link.address)
        self._models.held.engine_down(engine)
        self._failover.engine_lost(engine, crashed=not (node.draining or node.suspected))
        self._update_partitions(engine)

    def _adapters_changed(self, engine: PeerId, changes: engine_pb2.AdapterChanges) -> None:
        """An engine tells which adapters it knows; raises ``LinkRefused`` for more than it may."""
        known = ((adapter_from_proto(each.adapter), each) for each in changes.states)
        states = [(adapter, AdapterState(each.current, each.loaded)) for adapter, each in known if adapter is not None]
        gone = filter(None, map(adapter_from_proto, changes.gone))
        now = new_incarnation()
        try:
            self._routes.adapters.told(engine, states, gone, complete=changes.complete, now=now)
        except ValueError as error:
            raise LinkRefused(str(error)) from None
        self._routes.adapters_changed()

    # DetokenizerOwner

    def detokenizer_up(
        self, detokenizer: PeerId, address: str, capabilities: Iterable[str] = (), zone: str | None = None
    ) -> None:
        self._peers.detokenizers[detokenizer] = LinkedDetokenizer("detokenizer", detokenizer, address)
        self._routes.detokenizer_up(detokenizer, capabilities, zone)
        self._peers.events.append(PeerEvent("detokenizer", detokenizer.name, "joined"))
        log.info("detokenizer subscribed", detokenizer=detokenizer.name, address=address, zone=zone)
        self._failover.routes_changed()

    def detokenizer_frame(self, detokenizer: PeerId, frame: detokenizer_pb2.SubscribeResponse) -> None:
        """Load, engines heard, draining and text."""
        node = self._peers.detokenizers[detokenizer]
        if frame.HasField("load"):
            node.load = frame.load
            node.liveness.beat(time.monotonic())
            self._routes.detokenizer_load(detokenizer, frame.load.live_requests)
        if frame.HasField("engines"):
            self._routes.detokenizer_hears(detokenizer, _apply(node.attached, frame.engines))
            self._update_partitions(detokenizer)
        if frame.HasField("draining"):
            node.draining = True
            self._routes.set_taking_work(detokenizer, False)
        if frame.HasField("outputs"):
            self._text_output.receive(frame.outputs)

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        self._lost(self._peers.detokenizers.pop(detokenizer))
        self._routes.detokenizer_down(detokenizer)
        log.info("detokenizer lost", detokenizer=detokenizer.name)
        self._failover.detokenizer_lost(detokenizer)
        self._update_partitions(detokenizer)

    # Both

    def check_liveness(self, now: float) -> None:
        """Suspect peers without recent heartbeats or progress; trust suspects again once they have both.

        Call a few times a second.
        """
        trusted_again = False
        asleep = 0.0 if self._checked_at is None else now - self._checked_at
        self._checked_at = now
        for node in self._peers.all():
            if asleep > _ASLEEP:
                node.liveness.forgive(asleep)
            reason = node.liveness.suspicion(now)
            if (reason is not None) != node.suspected:
                node.suspected = reason is not None
                trusted_again |= not node.suspected
                self._routes.set_taking_work(node.peer, not node.suspected and not node.draining)
                self._add_event(node, "silent" if reason else "heard")
                log.warning("peer suspected" if reason else "peer trusted again", peer=node.peer.name, reason=reason)
        if trusted_again:
            self._failover.routes_changed()

    def _lost(self, node: LinkedPeer) -> None:
        self._add_event(node, "left" if node.draining else "lost")
        self._peers.losses[node.service] += not node.draining

    def _add_event(self, node: LinkedPeer, what: str) -> None:
        requests = self._routes.requests()[node.peer]
        self._peers.events.append(PeerEvent(node.service, node.peer.name, what, requests))

    def _update_partitions(self, peer: PeerId) -> None:
        """Update the partitioned pairs of a peer after any of its links changed."""
        partitioned, known = self._routes.partitioned(peer), self._peers.partitioned
        before = {route for route in known if peer in route.peers}
        if partitioned != before:
            for route in before - partitioned:
                del known[route]
            known.update(dict.fromkeys(partitioned - before, time.monotonic()))
            self._failover.routes_changed()


def _apply(peers: PeerList, changes: link_pb2.PeerChanges) -> frozenset[PeerId]:
    """The peers after a report; raises ``LinkRefused`` for an invalid report."""
    try:
        return peers.apply(peer_changes_from_proto(changes))
    except ValueError as error:
        raise LinkRefused(str(error)) from None
