"""The detokenizer's engines: each link has a decoder of its own, and all have one tokenizer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog
from ringline.engine.v1 import engine_pb2

from services.detokenizer.decode import EngineDecoder
from services.detokenizer.subscribers import Subscribers
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.outbox import Outboxes
from services.runtime.attach_client import EngineLink
from services.runtime.redial import LinkRefused
from services.runtime.tokenizer_fetch import fetch_tokenizer
from services.runtime.tracing import Tracing
from services.text.tokenizer import Tokenizer, TokenizerError

log = structlog.get_logger(__name__)

MODEL_TIMEOUT = 10.0


class Engines:
    """Implements ``EngineOwner``."""

    def __init__(self, tracing: Tracing | None = None, outboxes: Outboxes | None = None) -> None:
        """What waits for subscribers is counted in ``outboxes``."""
        self._tracing = tracing
        self.subscribers = Subscribers(self._subscriber_gone, outboxes)
        self._tokenizer: Tokenizer | None = None
        self._decoders: dict[PeerId, EngineDecoder] = {}
        self._heard_at: dict[PeerId, float] = {}
        """When each engine that is attached to was heard last, on the monotonic clock."""
        self._lock = asyncio.Lock()
        self._decoded_before = 0
        self.model_name = ""
        """What the engines serve, once known."""

    @property
    def attached(self) -> bool:
        """Whether any engine is attached to."""
        return bool(self._decoders)

    def push_load(self) -> int:
        """Have every subscriber told the load and which engines are heard; returns how many that are.

        On a link that is half open, nothing comes: its engine is attached to, and not heard.
        """
        now = time.monotonic()
        heard = frozenset(peer for peer, at in self._heard_at.items() if now - at <= BEAT_LIMIT)
        self.subscribers.heard(heard)
        self.subscribers.push_load()
        return len(heard)

    @property
    def num_requests(self) -> int:
        """Requests held."""
        return sum(decoder.num_requests for decoder in self._decoders.values())

    @property
    def decoded_tokens(self) -> int:
        """Since start."""
        return self._decoded_before + sum(decoder.decoded_tokens for decoder in self._decoders.values())

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Learn the tokenizer from the first engine; refuse engines that have another while one is attached."""
        model: engine_pb2.GetModelResponse = await stub.GetModel(engine_pb2.GetModelRequest(), timeout=MODEL_TIMEOUT)
        self.model_name = model.model
        fingerprint = model.tokenizer_digest
        async with self._lock:
            if self._tokenizer is None or self._tokenizer.fingerprint() != fingerprint:
                self._check(fingerprint)
                fetched = await self._fetch(stub, fingerprint)
                self._check(fingerprint)  # somebody may have come meanwhile
                self._tokenizer = fetched
        return model

    def _check(self, fingerprint: str) -> None:
        """Refuse an engine whose tokenizer is not that of the engines that are attached."""
        if self._decoders and self._tokenizer is not None and self._tokenizer.fingerprint() != fingerprint:
            raise LinkRefused(f"its tokenizer's fingerprint is {fingerprint}, expected {self._tokenizer.fingerprint()}")

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """Attached."""
        fingerprint = model.tokenizer_digest
        if self._tokenizer is None or self._tokenizer.fingerprint() != fingerprint:
            raise LinkRefused(f"its tokenizer's fingerprint is {fingerprint}: another engine was faster, with another")
        self._decoders[engine] = EngineDecoder(self._tokenizer, self.subscribers, self._tracing)
        self._heard_at[engine] = time.monotonic()
        self.push_load()
        log.info("engine attached", engine=engine.name, address=link.address)

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        """Ids become text; stop strings go back."""
        self._heard_at[engine] = time.monotonic()
        if frame.HasField("outputs"):
            link.send(self._decoders[engine].frame(frame.outputs))
            self.subscribers.wake()

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        """What the link brought goes with it."""
        self._decoded_before += self._decoders.pop(engine).decoded_tokens
        del self._heard_at[engine]
        self.push_load()
        log.info("engine lost", engine=engine.name, address=link.address)

    def _subscriber_gone(self, peer: PeerId) -> None:
        for decoder in self._decoders.values():
            decoder.drop_subscriber(peer)

    async def _fetch(self, stub: Any, fingerprint: str) -> Tokenizer:
        try:
            files = await fetch_tokenizer(stub)
            tokenizer = await asyncio.to_thread(Tokenizer.from_files, files)
        except (ValueError, TokenizerError) as error:
            raise LinkRefused(f"its tokenizer cannot be used: {error}") from error
        if tokenizer.fingerprint() != fingerprint:
            raise LinkRefused("the fingerprint of the tokenizer it sent is not the one it names")
        log.info("learned tokenizer", fingerprint=fingerprint)
        return tokenizer
