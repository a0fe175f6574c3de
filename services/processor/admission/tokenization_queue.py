"""The queue of requests to be tokenized: fair between tenants, bounded in bytes, processed in batches in threads.

Requests and look-ups (``Tokenize``, ``Detokenize``, large messages to parse) share the threads in deficit round-robin,
and a request goes ahead only when engines may soon need it (``TenantWindow``). A batch of small messages takes one hop
to a thread, and a short text to embed none while all are free; a large message does not hold up later ones, because
there are several threads. Requests with a constraint, whose grammar may take long to check, come one by one and never
occupy all threads. While no engine takes work, requests are parked, because their model is not known yet. A tenant may
hold at most as much of the room as it leaves free, so its flood neither holds up nor turns away others.

Waiting messages are held as bytes, their smallest form. Tokenizing a text takes up to 220 times its size, so few large
ones are in threads at a time; if a client leaves, its text counts until its thread is done.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ringline.inference.v1 import inference_pb2

from services.common.process.memory import trim_malloc
from services.common.process.run import DaemonThreadPool
from services.processor.admission.deficit_round_robin import DeficitRoundRobin
from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.pooling_job import PoolingJob
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.admission.tenant_window import MIN_AHEAD, TenantWindow
from services.processor.admission.throughput import Throughput
from services.processor.admission.tokenization_job import Job, LookUp, OnResolved, RequestJob
from services.processor.request import Request
from services.processor.served_models import ServedModels, no_route
from services.ring.errors import Code, Reason, Refused, retry_after_ms
from services.ring.identity import PeerId
from services.ring.tenant_quota import TenantQuota

_T = TypeVar("_T")

THREADS = 4
MAX_CHECKING = THREADS // 2
"""Maximum threads that check grammars at a time; the others tokenize texts, which takes less time."""
BATCH_BYTES = 64 << 10
"""Messages are batched up to this total size."""
MAX_WAITING_BYTES = 64 << 20
"""Bound on the total size of messages that wait for a thread."""
MAX_BEGUN_BYTES = THREADS * BATCH_BYTES
"""While threads work on more bytes than this, no further batch is started."""


class TokenizationQueue:
    """Turns received requests into resolved ones."""

    def __init__(
        self,
        models: ServedModels,
        choices: ModelChoices,
        policies: TenantPolicies,
        me: PeerId,
        *,
        route_timeout: float,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        engine_capacity: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``route_timeout``: seconds that a request is parked until an engine takes work.

        ``max_waiting_bytes``: bound on waiting messages; one larger message may wait alone.

        ``engine_capacity``: choices that engines compute at a time; None without engines, or if it is not known.
        """
        self._models = models
        self._choices = choices
        self._policies = policies
        self._me = me
        self._route_timeout = route_timeout
        self._engine_capacity = engine_capacity
        self._pool = DaemonThreadPool(THREADS, "tokenize")
        self._free_threads = THREADS
        self._urgent: DeficitRoundRobin[Job] = DeficitRoundRobin(quantum=BATCH_BYTES)
        self._waiting: DeficitRoundRobin[Job] = DeficitRoundRobin(quantum=BATCH_BYTES)
        self._constrained: DeficitRoundRobin[Job] = DeficitRoundRobin(quantum=BATCH_BYTES)
        self._checking = 0
        """Threads that work on jobs of ``_constrained``."""
        self._urgent_was_last = False
        """Whether the last batch consisted of urgent jobs."""
        self._look_ups = itertools.count(1)
        self._parked: dict[str, tuple[Job, float]] = {}
        """Requests parked without an engine, and since when, keyed by request id; oldest first."""
        self._window: TenantWindow[Job] = TenantWindow()
        self._release_scheduled = False
        self._bytes = TenantQuota(max_waiting_bytes)
        """Bytes of waiting messages, per tenant."""
        self._begun_bytes = 0
        """Bytes of messages that threads work on, even if their client has gone."""
        self._throughput = Throughput()
        """Bytes per second that leave the queue, measured while any wait."""

    def close(self) -> None:
        self._window.clear()
        self._parked.clear()
        self._urgent.clear()
        self._waiting.clear()
        self._constrained.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Requests

    def add(
        self,
        request: Request,
        on_resolved: OnResolved,
        on_other_model: Callable[[Request], None] = lambda request: None,
    ) -> None:
        """Queue a received request. ``on_resolved`` is called later, unless the request has ended by then.

        ``on_other_model`` is called instead if its pictures were prepared for another model than takes it now.

        Raises ``Refused`` while too much waits already.
        """
        message = request.message
        assert message is not None
        job: Job
        if message.kind is inference_pb2.GenerateRequest:
            job = RequestJob(request, message, on_resolved, self._models, self._choices, self._me, on_other_model)
        else:
            job = PoolingJob(request, message, on_resolved, self._models, self._choices)
        self._reserve(job.tenant, job.held)
        if self._window.enter(job.tenant, message.priority, job.key, job, self._max_ahead(job.tenant)):
            self._append(job)

    def remove(self, request: Request) -> None:
        """Drop an ended request if it still waits: its message may be large."""
        if request.message is None:
            return
        held_back = self._window.remove(request.tenant, request.message.priority, request.request_id)
        job, _ = self._parked.pop(request.request_id, (held_back, 0.0))
        if job is not None:
            self._bytes.give_back(job.tenant, job.held)
        else:
            waiting = self._constrained if request.message.is_constrained else self._waiting
            self._remove(waiting, request.tenant, request.request_id)

    def begun(self, request_id: str) -> None:
        """An engine has begun a request, or it has ended: another of its tenant may go ahead.

        If many leave in one turn of the event loop, ``release`` runs once for all of them.
        """
        self._window.leave(request_id)
        if self._window and not self._release_scheduled:
            self._release_scheduled = True
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        """Queue held-back requests that engines may soon need. Call a few times a second: engines come and go."""
        self._release_scheduled = False
        for job in self._window.release(self._max_ahead):
            self._append(job)
        if self._parked:
            self._check_parked(time.monotonic())

    # Look-ups

    async def run_in_thread(self, function: Callable[[], _T], tenant: str, size: int, *, urgent: bool = False) -> _T:
        """Run other work on a tenant's message of ``size`` bytes in a thread, in its turn.

        ``urgent``: ahead of messages to be tokenized; for work that takes milliseconds while a stream waits for it.
        Under constant urgent work, urgent and other batches alternate.
        Raises ``Refused`` while too much waits already, and any exception of ``function``.
        """
        job = LookUp(f"look-up {next(self._look_ups)}", tenant, size, function)
        self._reserve(tenant, job.held)
        waiting = self._urgent if urgent else self._waiting
        waiting.append(tenant, job.key, job)
        self._start_batches()
        try:
            return await job.answer
        finally:
            self._remove(waiting, tenant, job.key)
            del job  # if its answer is an error, this breaks the reference cycle with this stack frame

    # Room

    def _max_ahead(self, tenant: str) -> int | None:
        """Requests of a tenant that may wait at engines; None for any number.

        There is no bound without engines, when each request has its own route timeout, nor if the tenant's policy
        bounds queued tokens.
        """
        capacity = self._engine_capacity()
        if capacity is None or self._policies.of(tenant).max_queued_tokens is not None:
            return None
        return max(MIN_AHEAD, capacity)

    def _reserve(self, tenant: str, size: int) -> None:
        if not self._bytes.has_room(tenant, size):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"this tenant has {self._bytes.held(tenant)} bytes waiting to be tokenized, and this request {size}; "
                "together they may be no more than the queue has free, now "
                f"{max(0, self._bytes.most - self._bytes.total)} of {self._bytes.most} bytes; retry later",
                retry_after_ms=retry_after_ms(self._wait_seconds(tenant)),
                reason=Reason.QUOTA,
            )
        if not self._bytes.total:
            self._throughput.begin(time.monotonic())
        self._bytes.take(tenant, size)

    def _wait_seconds(self, tenant: str) -> float | None:
        """Estimated seconds until a tenant's waiting bytes have left the queue; None without an estimate."""
        speed = self._throughput.per_second()
        return self._bytes.held(tenant) * len(self._bytes) / speed if speed else None

    # Batches

    def _append(self, job: Job) -> None:
        waiting = self._constrained if job.is_constrained else self._waiting
        waiting.append(job.tenant, job.key, job)
        self._start_batches()

    def _remove(self, waiting: DeficitRoundRobin[Job], tenant: str, key: str) -> None:
        if (job := waiting.remove(tenant, key)) is not None:
            self._bytes.give_back(tenant, job.held)

    def _next_queue(self) -> DeficitRoundRobin[Job]:
        if self._constrained and self._checking < MAX_CHECKING:
            return self._constrained
        if self._waiting and self._urgent_was_last:
            return self._waiting
        return self._urgent or self._waiting

    def _start_batches(self) -> None:
        while self._free_threads and (waiting := self._next_queue()) and self._begun_bytes <= MAX_BEGUN_BYTES:
            batch: list[Job] = []
            now = time.monotonic()
            self._urgent_was_last = waiting is self._urgent
            for job in waiting.take():
                if not job.is_ready():
                    self._parked[job.key] = job, now
                    continue
                batch.append(job)
                self._bytes.give_back(job.tenant, job.held)
                self._begun_bytes += job.size
                self._throughput.add(job.held, now)
            if not batch:
                continue
            loop, is_idle = asyncio.get_running_loop(), self._free_threads == THREADS
            self._free_threads -= 1
            self._checking += batch[0].is_constrained
            if is_idle and len(batch) == 1 and batch[0].is_quick:
                loop.call_soon(self._run_here, batch)
            else:
                future = loop.run_in_executor(self._pool, _run_batch, batch)
                future.add_done_callback(partial(self._batch_done, batch))

    def _run_here(self, batch: list[Job]) -> None:
        """Run a quick job on the event loop: to hand it to a thread, and back, would take as long."""
        self._batch_ended(batch, _run_batch(batch))

    def _batch_done(self, batch: list[Job], done: asyncio.Future[list[object]]) -> None:
        self._batch_ended(batch, [] if done.cancelled() else done.result())

    def _batch_ended(self, batch: list[Job], outcomes: list[object]) -> None:
        """``outcomes``: of all jobs, or none as the queue is closed."""
        self._free_threads += 1
        self._checking -= batch[0].is_constrained
        self._begun_bytes -= sum(job.size for job in batch)
        if not outcomes:
            return
        for job, outcome in zip(batch, outcomes, strict=True):
            if not job.finish(outcome):
                self._bytes.take(job.tenant, job.held)
                self._append(job)
        self._start_batches()

    def _check_parked(self, now: float) -> None:
        """Queue parked requests that engines now accept; end those that have waited too long."""
        served = self._models.preferred()
        for key, (job, since) in list(self._parked.items()):
            if job.is_ready():
                del self._parked[key]
                self._append(job)
            elif now - since > self._route_timeout:
                del self._parked[key]
                self._bytes.give_back(job.tenant, job.held)
                reason = self._models.no_route_reason
                job.finish(no_route(served, None, self._route_timeout, reason, job.awaited_adapter))
            elif not served:
                return  # later entries came later still


def _run_batch(batch: list[Job]) -> list[object]:
    """Runs in a worker thread."""
    outcomes = [job.outcome() for job in batch]
    if sum(job.held for job in batch) > BATCH_BYTES:
        trim_malloc()
    return outcomes
