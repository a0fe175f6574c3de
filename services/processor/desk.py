"""The admission desk: requests wait here while they are tokenized, off the event loop and in batches.

A batch takes one hop to a worker thread, however many small requests it holds; a large one does not hold up those
behind it, because there are several threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from ringline.inference.v1 import inference_pb2

from services.processor.admission import Admission, admit
from services.processor.client import ClientRequest, LiveRequest
from services.processor.ring import Ring
from services.processor.vocabulary import VocabularySource
from services.ring.events import Cause, Code, Refused, Status
from services.ring.identity import PeerId
from services.ring.request import RingRequest

log = structlog.get_logger(__name__)

THREADS = 4
BATCH_BYTES = 64 << 10
"""Prompts are batched up to this size together."""

_Work = tuple[ClientRequest, inference_pb2.GenerateRequest]


class Desk:
    """Admits requests and sends them out on the ring."""

    def __init__(self, vocabulary: VocabularySource, ring: Ring, me: PeerId) -> None:
        self._vocabulary = vocabulary
        self._ring = ring
        self._me = me
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._free = THREADS
        self._waiting: list[_Work] = []

    def close(self) -> None:
        """Admit nothing more."""
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def admit(self, call: ClientRequest, request: inference_pb2.GenerateRequest) -> None:
        """Take a request; it goes on from here, or ends with the reason why not. Bounded by the sessions' limits."""
        self._waiting.append((call, request))
        self._next_batch()

    async def run(self, function: Callable[[], object]) -> object:
        """Run something else that takes its time in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def _next_batch(self) -> None:
        while self._free and self._waiting:
            batch = self._cut_batch()
            self._free -= 1
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, self._admit_all, batch)
            future.add_done_callback(lambda done, batch=batch: self._admitted(batch, done))  # type: ignore[misc]

    def _cut_batch(self) -> list[_Work]:
        size = 0
        for index, (_, request) in enumerate(self._waiting):
            size += request.ByteSize()
            if size > BATCH_BYTES and index > 0:
                batch, self._waiting = self._waiting[:index], self._waiting[index:]
                return batch
        batch, self._waiting = self._waiting, []
        return batch

    def _admit_all(self, batch: list[_Work]) -> list[Admission | Status]:
        """In a worker thread."""
        results: list[Admission | Status] = []
        for call, request in batch:
            try:
                results.append(self._admit_one(call, request))
            except Refused as refused:
                results.append(refused.status)
            except Exception:
                log.exception("admission failed", request_id=call.ring_id)
                results.append(Status(Code.INTERNAL, f"internal error; the log has it under {call.ring_id}"))
        return results

    def _admit_one(self, call: ClientRequest, request: inference_pb2.GenerateRequest) -> Admission:
        vocabulary = self._vocabulary.current
        if vocabulary is None:
            raise Refused(Code.UNAVAILABLE, "no engine has said yet what it serves", retry_after_ms=1000)
        return admit(request, vocabulary, call.client.tenant, self._me)

    def _admitted(self, batch: list[_Work], done: asyncio.Future[list[Admission | Status]]) -> None:
        self._free += 1
        if done.cancelled():
            return
        for (call, _), result in zip(batch, done.result(), strict=True):
            if call.ended:
                continue
            if isinstance(result, Status):
                self._ring.end(call, Cause.ERROR, result)
            elif call.deadline is not None and time.monotonic() >= call.deadline:
                self._ring.end(call, Cause.DEADLINE)
            else:
                ring = RingRequest(call.ring_id, result.admitted.prompt_tokens, result.choices)
                call.live = LiveRequest(call, result, ring)
                self._ring.start(call.live)
        self._next_batch()
