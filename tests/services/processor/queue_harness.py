"""A tokenization queue whose threads are occupied until a test lets them go, and clients that ask for something."""

from __future__ import annotations

import asyncio
import threading
import time

from ringline.inference.v1 import inference_pb2

from services.processor.admission.admission import MAX_LIVE_BYTES
from services.processor.admission.tokenization_queue import BATCH_BYTES, THREADS
from services.processor.client_stream import ClientStream
from services.processor.principal import Principal
from services.processor.request import Request
from tests.services.processor.model_specs import learned, served_model
from tests.services.processor.processor_core import ROUTE_TIMEOUT, ProcessorCore

LARGE = BATCH_BYTES + 1


class QueueHarness(ProcessorCore):
    """Its engines compute ``capacity`` choices at a time, and serve ``served``."""

    def __init__(
        self,
        max_waiting_bytes: int = 4 * LARGE + 2000,
        route_timeout: float = ROUTE_TIMEOUT,
        max_live_bytes: int = MAX_LIVE_BYTES,
    ) -> None:
        self.capacity: int | None = None
        self.served = [served_model().generation]
        super().__init__(
            lambda routes: learned(preferred=lambda: self.served),
            route_timeout=route_timeout,
            max_waiting_bytes=max_waiting_bytes,
            max_live_bytes=max_live_bytes,
            engine_capacity=lambda: self.capacity,
        )
        self.streams: dict[str, ClientStream] = {}
        self.stream = self.stream_of("")
        self._go = threading.Event()
        self._held = [asyncio.create_task(self.queue.run_in_thread(self._go.wait, "", 0)) for _ in range(THREADS)]

    def stream_of(self, tenant: str) -> ClientStream:
        if tenant not in self.streams:
            self.streams[tenant] = self.intake.open(Principal(tenant))
        return self.streams[tenant]

    def ask(
        self, name: str, size: int, tenant: str = "", begun_on: str = "", model: str = "", regex: str = ""
    ) -> Request:
        """``begun_on``: the model that it resumes on; ``model``: the name that it asks for; ``regex``: a constraint."""
        message = inference_pb2.GenerateRequest(request_id=name, text="a" * size, model=model)
        if regex:
            message.constraint.regex = regex
        if begun_on:
            message.resume.model_digest = begun_on
            message.resume.choices.add(choice=0, token_ids=[5])
            message.sampling.seed = 1
        stream = self.stream_of(tenant)
        self.intake.begin(stream, message, 1, time.monotonic(), None)
        request = stream.find(name)
        assert request is not None
        return request

    def free_threads(self) -> None:
        self._go.set()

    async def run(self) -> None:
        """Let the threads work, until every request is in flight or has ended."""
        self.free_threads()
        await asyncio.gather(*self._held)
        async with asyncio.timeout(30):
            while any(not request.admitted and not request.finished for request in self.stream.requests()):
                await self.stream.wake.wait()
                self.stream.wake.clear()
