"""The detokenizer's engines: each link has its own decoder, with its engine's tokenizer.

During a rollout, engines with different tokenizers are linked at the same time.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from ringline.engine.v1 import engine_pb2

from services.common.links.engine_link import EngineLink
from services.common.links.redial import LinkRefused
from services.common.links.tokenizer_fetch import TokenizerFetcher
from services.common.telemetry.tracing import Tracing
from services.detokenizer.engine_decoder import EngineDecoder
from services.detokenizer.subscribers import Subscribers
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.model_generations import Generations
from services.ring.outbox import Outboxes
from text_core.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

MODEL_TIMEOUT = 10.0


class Engines:
    """The linked engines, their decoders and tokenizers. Implements ``EngineOwner``."""

    def __init__(self, max_generations: int, tracing: Tracing | None = None, outboxes: Outboxes | None = None) -> None:
        """``max_generations``: tokenizers held at a time. ``outboxes`` bounds output unread by subscribers."""
        self._max_generations = max_generations
        self._tracing = tracing
        self.subscribers = Subscribers(self._subscriber_gone, outboxes)
        self._tokenizers: Generations[str, Tokenizer] = Generations(max_generations)
        """Tokenizers keyed by digest."""
        self._fetches = TokenizerFetcher(Tokenizer.from_files)
        self._decoders: dict[PeerId, EngineDecoder] = {}
        self._heard_at: dict[PeerId, float] = {}
        """When each attached engine last sent a frame, on the monotonic clock."""
        self._decoded_before = 0
        self._models: dict[PeerId, str] = {}
        """Name of the model that each engine serves."""
        self.model_name = ""
        """Name of the model of the engine that was started last; empty until an engine is attached."""

    @property
    def attached(self) -> bool:
        return bool(self._decoders)

    def push_load(self) -> int:
        """Make every subscriber's stream send the load and the list of live engines; returns their number.

        An attached but silent engine (on a half-open connection) is not live.
        """
        now = time.monotonic()
        live = frozenset(peer for peer, at in self._heard_at.items() if now - at <= BEAT_LIMIT)
        self.subscribers.update_engines(live)
        self.subscribers.push_load()
        return len(live)

    @property
    def num_generations(self) -> int:
        """Tokenizers held."""
        return len(self._tokenizers)

    @property
    def num_requests(self) -> int:
        return sum(decoder.num_requests for decoder in self._decoders.values())

    @property
    def decoded_tokens(self) -> int:
        """Tokens decoded since the process started."""
        return self._decoded_before + sum(decoder.decoded_tokens for decoder in self._decoders.values())

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Ask an engine for its model, and fetch its tokenizer unless it is known."""
        model: engine_pb2.GetModelResponse = await stub.GetModel(engine_pb2.GetModelRequest(), timeout=MODEL_TIMEOUT)
        digest = model.tokenizer_digest
        await self._fetches.get(
            digest, stub, lambda: self._tokenizers.get(digest), lambda found: self._learn(model, found)
        )
        return model

    def _learn(self, model: engine_pb2.GetModelResponse, tokenizer: Tokenizer) -> None:
        if not self._tokenizers.learn(model.tokenizer_digest, PeerId(model.name, model.incarnation), tokenizer):
            raise LinkRefused(f"limit of {self._max_generations} tokenizers (--max-generations) reached")
        log.info("learned tokenizer", model=model.model, tokenizer_digest=model.tokenizer_digest)

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """An engine is attached: give it a decoder. Raises ``LinkRefused`` if its tokenizer was evicted meanwhile."""
        tokenizer = self._tokenizers.get(model.tokenizer_digest)
        if tokenizer is None:
            problem = "its tokenizer was dropped for later ones"
            raise LinkRefused(f"{problem}: limit of {self._max_generations} tokenizers (--max-generations) reached")
        self._tokenizers.engine_up(engine, model.tokenizer_digest)
        self._decoders[engine] = EngineDecoder(tokenizer, self.subscribers, self._tracing)
        self._models[engine] = model.model
        self.model_name = self._models[max(self._models, key=lambda engine: engine.incarnation)]
        self._heard_at[engine] = time.monotonic()
        self.push_load()
        log.info("engine attached", engine=engine.name, address=link.address)

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        self._heard_at[engine] = time.monotonic()
        if frame.HasField("outputs"):
            link.send(self._decoders[engine].frame(frame.outputs))

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        self._decoded_before += self._decoders.pop(engine).decoded_tokens
        del self._heard_at[engine], self._models[engine]
        self._tokenizers.engine_down(engine)
        self.push_load()
        log.info("engine lost", engine=engine.name, address=link.address)

    def _subscriber_gone(self, peer: PeerId) -> None:
        for decoder in self._decoders.values():
            decoder.drop_subscriber(peer)
