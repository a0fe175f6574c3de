"""A desk whose threads can be held up, and clients before it."""

from __future__ import annotations

import asyncio
import random
import threading
import time

from ringline.inference.v1 import inference_pb2

from services.processor.admission.tokenization_queue import BATCH_BYTES, THREADS, TokenizationQueue
from services.processor.client import ClientRequest, ClientStream
from services.processor.in_flight import InFlightRequests
from services.processor.metrics import ProcessorMetrics
from services.processor.peers import Peers
from services.ring.identity import PeerId, ring_id
from tests.services.processor.backlogs import roomy
from tests.services.processor.model_specs import learned, vocabulary

LARGE = BATCH_BYTES + 1


class Office:
    """Its engines compute ``seats`` choices at a time, and serve ``served``."""

    def __init__(self, max_waiting_bytes: int, patience: float = 60.0) -> None:
        self.seats: int | None = None
        source = self.source = learned()
        self.served = [vocabulary().generation]
        me = PeerId("processor", 1)
        peers = self.peers = Peers(source, random.Random(0))
        source.preferred = lambda: self.served
        self.ring = InFlightRequests(peers, ProcessorMetrics(), roomy(), patience=60.0)
        peers.events = self.ring
        self.desk = TokenizationQueue(
            source,
            self.ring,
            me,
            patience=patience,
            max_waiting_bytes=max_waiting_bytes,
            seats=lambda: self.seats,
        )
        self.client = ClientStream("")
        self.clients = {"": self.client}
        self._asked = 0
        self._go = threading.Event()
        self._held = [asyncio.create_task(self.desk.look_up(self._go.wait, "", 0)) for _ in range(THREADS)]

    def ask(self, name: str, size: int, tenant: str = "", begun_on: str = "") -> ClientRequest:
        """``begun_on``: the model that it goes on with."""
        client = self.clients.setdefault(tenant, ClientStream(tenant))
        request = inference_pb2.GenerateRequest(request_id=name, text="a" * size)
        if begun_on:
            request.resume.model_digest = begun_on
            request.resume.choices.add(choice=0, token_ids=[5])
            request.sampling.seed = 1
        self._asked += 1
        call = ClientRequest(ring_id(1, self._asked), name, 1, client, time.monotonic(), None)
        self.desk.admit(call, request)
        client.add(call)
        return call

    def free(self) -> None:
        """Let the threads work."""
        self._go.set()

    async def go(self) -> None:
        """Let the threads work, until every request is on the ring or has ended."""
        self.free()
        await asyncio.gather(*self._held)
        async with asyncio.timeout(30):
            while any(call.live is None and not call.ended for call in self.client.requests()):
                await self.client.wake.wait()
                self.client.wake.clear()
