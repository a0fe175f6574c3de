"""Handles the events of the links to engines and detokenizers.

``Peers`` is updated first; then the owner of the requests is notified, as a ``PeerListener``.
"""

from __future__ import annotations

from typing import Any, Protocol

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.common.links.engine_link import EngineLink
from services.processor.peers import Peers
from services.processor.served_models import ServedModels
from services.ring.identity import PeerId


class PeerListener(Protocol):
    """Receives the events of peers that concern requests."""

    def routes_changed(self) -> None:
        """A pair may have been joined: requests without a route may get one."""

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> None:
        """The link to an engine ended; ``crashed`` unless it was draining or had hung."""

    def detokenizer_lost(self, detokenizer: PeerId) -> None: ...

    def rejected(self, rejection: link_pb2.Rejection) -> None: ...

    def text(self, outputs: detokenizer_pb2.TextOutputs) -> None: ...


class LinkEvents:
    """Implements ``EngineOwner`` and ``DetokenizerOwner``: every link of the process reports here."""

    def __init__(self, models: ServedModels, peers: Peers, listener: PeerListener) -> None:
        self._models = models
        self._peers = peers
        self._listener = listener

    # EngineOwner

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        return await self._models.learn(stub)

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """The engine is attached; raises ``LinkRefused`` if its model was dropped meanwhile."""
        self._models.engine_up(engine, model)
        self._peers.engine_up(link, engine, model)
        self._update_partitions(engine)

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        """Load, peers, draining and rejections; text comes from the detokenizer."""
        if frame.HasField("load"):
            self._peers.engine_load(engine, frame.load)
        if frame.HasField("peers"):
            self._peers.engine_peers(engine, frame.peers)
            self._listener.routes_changed()
        if frame.HasField("draining"):
            self._peers.engine_draining(engine)
        for rejection in frame.rejections:
            self._listener.rejected(rejection)

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        crashed = self._peers.engine_down(link, engine)
        self._models.engine_down(engine)
        self._listener.engine_lost(engine, crashed=crashed)
        self._update_partitions(engine)

    # DetokenizerOwner

    def detokenizer_up(self, detokenizer: PeerId, address: str) -> None:
        self._peers.detokenizer_up(detokenizer, address)
        self._listener.routes_changed()

    def detokenizer_frame(self, detokenizer: PeerId, frame: detokenizer_pb2.SubscribeResponse) -> None:
        """Load, engines that it hears, draining and text."""
        if frame.HasField("load"):
            self._peers.detokenizer_load(detokenizer, frame.load)
        if frame.HasField("engines"):
            self._peers.detokenizer_hears(detokenizer, frame.engines)
            self._update_partitions(detokenizer)
        if frame.HasField("draining"):
            self._peers.detokenizer_draining(detokenizer)
        if frame.HasField("outputs"):
            self._listener.text(frame.outputs)

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        self._peers.detokenizer_down(detokenizer)
        self._listener.detokenizer_lost(detokenizer)
        self._update_partitions(detokenizer)

    # Liveness

    def check_liveness(self, now: float) -> None:
        """Suspect peers that give no sign of life, and trust those again that do. Call a few times a second."""
        if self._peers.check_liveness(now):
            self._listener.routes_changed()

    def _update_partitions(self, peer: PeerId) -> None:
        if self._peers.update_partitions(peer):
            self._listener.routes_changed()
