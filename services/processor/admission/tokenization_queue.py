"""The admission desk: what has to be tokenized waits here, and is tokenized off the event loop and in batches.

Requests and look-ups wait in the same turns, and a request only when engines may soon need it (``window``). A batch
takes one hop to a worker thread, however many small ones it holds; a large one does not hold up those behind it,
because there are several threads. While no engine takes work, requests wait here: which model they are for is not
known before one does. Tenants take turns, and one may fill as much of the room as it leaves free, so that a
flood of one does not hold up or turn away the others.

What waits is held as bytes, the smallest form it has. Texts take up to 220 times their size while they are tokenized,
so few large ones are worked on at a time; those whose clients have gone count until their threads are done.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import structlog
from ringline.inference.v1 import inference_pb2

from services.process.memory import give_back_free_memory
from services.process.run import Workers
from services.processor.admission.deficit_round_robin import DeficitRoundRobin
from services.processor.admission.resolve import Admission, admit
from services.processor.admission.tenant_window import LEAST, TenantWindow
from services.processor.admission.throughput import Throughput
from services.processor.client import ClientRequest, LiveRequest
from services.processor.in_flight import InFlightRequests
from services.processor.served_models import ServedModel, ServedModels, no_model, no_route
from services.ring.dynamic_threshold import DynamicThreshold
from services.ring.errors import Code, Reason, Refused, Status, retry_after_ms
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from services.ring.request import RingRequest
from services.rpc.message_limits import MalformedMessage

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

THREADS = 4
BATCH_BYTES = 64 << 10
"""Messages are batched up to this size together."""
MAX_WAITING_BYTES = 64 << 20
"""Messages that wait for a thread are held up to this size together."""
MAX_BEGUN_BYTES = THREADS * BATCH_BYTES
"""While threads work on more than this, no other thread begins."""
LEAST_BYTES = 64
"""What the smallest message counts for: an empty one takes its time, too."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A message that waits for a thread, or is worked on in one."""

    name: str
    tenant: str
    size: int
    """Bytes that it counts for."""
    begin: Callable[[], Callable[[], object] | None]
    """On the event loop, when its turn has come: what a worker thread is to do; None while that is not known."""
    tell: Callable[[Any], None]
    """On the event loop: what that returned, or the exception that it raised, without its traceback."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that waits to be tokenized."""

    packed: bytes
    model: str
    """That it names."""
    begun_on: str
    """Digest of the model that it goes on with; empty for a new request."""


class TokenizationQueue:
    """Admits requests and sends them out on the ring."""

    def __init__(
        self,
        vocabularies: ServedModels,
        ring: InFlightRequests,
        me: PeerId,
        *,
        patience: float,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        seats: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``patience`` in seconds: how long a request waits for an engine that takes work.

        ``max_waiting_bytes``: how much may wait here; one request that is larger may wait alone.

        ``seats``: choices that engines compute at a time; None where there is no engine, or it is not known.
        """
        self._vocabularies = vocabularies
        self._ring = ring
        self._patience = patience
        self._me = me
        self._seats = seats
        self._pool = Workers(THREADS, "tokenize")
        self._free = THREADS
        self._first: DeficitRoundRobin[_Work] = DeficitRoundRobin(quantum=BATCH_BYTES)
        self._waiting: DeficitRoundRobin[_Work] = DeficitRoundRobin(quantum=BATCH_BYTES)
        self._first_was_last = False
        """Whether the last batch was taken from the former."""
        self._look_ups = itertools.count(1)
        self._parked: dict[str, tuple[_Work, float]] = {}
        """What waits for an engine, by ring id, and since when; in that order."""
        self._window: TenantWindow[_Work] = TenantWindow()
        self._release_due = False
        ring.backlog.on_leave = self._left
        self._bytes = DynamicThreshold(max_waiting_bytes)
        """Of what waits here."""
        self._begun_bytes = 0
        """Of what threads work on, also where its client has given it up."""
        self._speed = Throughput()
        """Bytes that leave, per second, while any wait."""

    def close(self) -> None:
        """Admit nothing more."""
        self._window.clear()
        self._parked.clear()
        self._first.clear()
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def admit(self, call: ClientRequest, request: inference_pb2.GenerateRequest) -> None:
        """Take a request; it goes on from here, or ends with the reason why not.

        Raises ``Refused`` while too much waits already, here or for an engine.
        """
        tenant, now = call.client.tenant, time.monotonic()
        timeout = None if call.deadline is None else call.deadline - now
        stopping = request.stopping
        self._ring.backlog.check(tenant, timeout, stopping.max_tokens if stopping.HasField("max_tokens") else None)
        self._ring.meter.check(tenant, now)
        asked = _Asked(request.SerializeToString(), request.model, request.resume.model_digest)
        work = self._work_of(call, asked)
        self._make_room(tenant, work.size)
        self._ring.backlog.enter(call.ring_id, tenant, now)
        self._ring.meter.enter(call.ring_id, tenant, now)
        if self._window.enter(tenant, request.priority, call.ring_id, work, self._most_ahead(tenant)):
            self._append(work)

    def drop(self, call: ClientRequest) -> None:
        """Let go of a request that ended, if it waits here: its message may be large."""
        kept = self._window.remove(call.ring_id)
        work, _ = self._parked.pop(call.ring_id, (kept, 0.0))
        if work is not None:
            self._bytes.give_back(work.tenant, work.size)
        else:
            self._drop(self._waiting, call.client.tenant, call.ring_id)

    def release(self) -> None:
        """Let go on what engines may soon need. Call a few times a second: engines come and go."""
        self._release_due = False
        for work in self._window.release(self._most_ahead):
            self._append(work)
        if self._parked:
            self._look_at_parked(time.monotonic())

    async def look_up(self, function: Callable[[], _T], tenant: str, size: int, *, first: bool = False) -> _T:
        """Run something else that takes its time, on a tenant's message of ``size`` bytes, in a worker thread.

        ``first``: before what waits to be tokenized, as what takes milliseconds and holds up a stream; in turns with
        it, while there is always some.
        Raises ``Refused`` while too much waits already, and what ``function`` raises.
        """
        size = max(size, LEAST_BYTES)
        self._make_room(tenant, size)
        name = f"look-up {next(self._look_ups)}"
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        work = _Work(name, tenant, size, lambda: function, partial(_answer, answer))
        waiting = self._first if first else self._waiting
        waiting.append(tenant, name, work)
        self._next_batch()
        try:
            return await answer
        finally:
            self._drop(waiting, tenant, name)
            del answer  # an error that it holds refers to this frame: they would stay until Python looks for cycles

    def _left(self, ring_id: str) -> None:
        """An engine has begun a request, or it has ended; where many do so at a time, it is seen to once."""
        self._window.leave(ring_id)
        if self._window and not self._release_due:
            self._release_due = True
            asyncio.get_running_loop().call_soon(self.release)

    def _most_ahead(self, tenant: str) -> int | None:
        """Requests of a tenant that may wait at engines; None for any number.

        Without an engine, each of them loses patience for itself; and tokens are counted where a limit of them is set.
        """
        seats = self._seats()
        if seats is None or self._ring.meter.policies.of(tenant).max_queued_tokens is not None:
            return None
        return max(LEAST, seats)

    def _make_room(self, tenant: str, size: int) -> None:
        if not self._bytes.has_room(tenant, size):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{self._bytes.held(tenant)} bytes of this tenant wait to be tokenized, this request has {size}, and "
                f"there is room for {self._bytes.most - self._bytes.total}: expected at most as many as there is room",
                retry_after_ms=retry_after_ms(self._wait(tenant)),
                reason=Reason.QUOTA,
            )
        if not self._bytes.total:
            self._speed.begin(time.monotonic())
        self._bytes.take(tenant, size)

    def _append(self, work: _Work) -> None:
        self._waiting.append(work.tenant, work.name, work)
        self._next_batch()

    def _drop(self, waiting: DeficitRoundRobin[_Work], tenant: str, name: str) -> None:
        if (work := waiting.remove(tenant, name)) is not None:
            self._bytes.give_back(tenant, work.size)

    def _wait(self, tenant: str) -> float | None:
        """Seconds until what waits of a tenant has left, in turns with others'; None while that is not known."""
        speed = self._speed.per_second()
        return self._bytes.held(tenant) * len(self._bytes) / speed if speed else None

    def _next(self) -> DeficitRoundRobin[_Work]:
        if self._waiting and self._first_was_last:
            return self._waiting
        return self._first or self._waiting

    def _next_batch(self) -> None:
        while self._free and (waiting := self._next()) and self._begun_bytes <= MAX_BEGUN_BYTES:
            batch: list[tuple[_Work, Callable[[], object]]] = []
            now = time.monotonic()
            self._first_was_last = waiting is self._first
            for work in waiting.take():
                if (task := work.begin()) is None:
                    self._parked[work.name] = work, now
                    continue
                batch.append((work, task))
                self._bytes.give_back(work.tenant, work.size)
                self._begun_bytes += work.size
                self._speed.add(work.size, now)
            if not batch:
                continue
            self._free -= 1
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, _do_all, batch)
            future.add_done_callback(partial(self._done, [work for work, _ in batch]))

    def _done(self, batch: list[_Work], done: asyncio.Future[list[object]]) -> None:
        self._free += 1
        self._begun_bytes -= sum(work.size for work in batch)
        if done.cancelled():
            return
        for work, outcome in zip(batch, done.result(), strict=True):
            work.tell(outcome)
        self._next_batch()

    def _look_at_parked(self, now: float) -> None:
        """Let go on what engines take now; end what has waited too long."""
        served = self._vocabularies.preferred()
        for name, (work, since) in list(self._parked.items()):
            if work.begin() is not None:
                del self._parked[name]
                self._append(work)
            elif now - since > self._patience:
                del self._parked[name]
                self._bytes.give_back(work.tenant, work.size)
                work.tell(no_route(served, None, self._patience))
            elif not served:
                return  # and what is behind it came later

    def _work_of(self, call: ClientRequest, asked: _Asked) -> _Work:
        size = max(len(asked.packed), LEAST_BYTES)
        begin, tell = partial(self._begin, call, asked), partial(self._admitted, call, asked)
        return _Work(call.ring_id, call.client.tenant, size, begin, tell)

    def _begin(self, call: ClientRequest, asked: _Asked) -> Callable[[], Admission] | None:
        """Choose the model that a request is for: the one that it began on, else the one for new requests."""
        known = self._vocabularies
        vocabulary = known.of(asked.begun_on) if asked.begun_on else known.for_new(asked.model)
        if vocabulary is not None:
            return partial(self._admit_one, call, asked, vocabulary)
        return None if known.newest else _refuse_unknown

    def _admit_one(self, call: ClientRequest, asked: _Asked, vocabulary: ServedModel) -> Admission:
        """In a worker thread."""
        if call.ended:
            raise Refused(Code.CANCELLED, "it ended while it waited")  # nobody hears it
        self._ring.meter.policies.check_model(call.client.tenant, vocabulary.limits.name)
        traceparent = call.trace.traceparent if call.trace is not None else ""
        request = inference_pb2.GenerateRequest.FromString(asked.packed)
        return admit(request, vocabulary, call.client.tenant, self._me, traceparent)

    def _admitted(self, call: ClientRequest, asked: _Asked, outcome: Admission | Exception) -> None:
        """On the event loop."""
        if call.ended:
            return
        if isinstance(outcome, Refused):
            self._ring.end(call, FinishReason.ERROR, outcome.status)
        elif isinstance(outcome, Exception):
            log.error("admission failed", request_id=call.ring_id, error=repr(outcome))
            message = f"internal error; the log has it under {call.ring_id}"
            self._ring.end(call, FinishReason.ERROR, Status(Code.INTERNAL, message))
        elif not self._may_start(asked, outcome):
            work = self._work_of(call, asked)
            self._bytes.take(work.tenant, work.size)
            self._append(work)
        elif call.deadline is not None and time.monotonic() >= call.deadline:
            self._ring.end(call, FinishReason.DEADLINE)
        else:
            self._start(call, outcome)

    def _may_start(self, asked: _Asked, admission: Admission) -> bool:
        """Whether there are engines for it yet. If not, nobody was told anything: a new request may be for others."""
        if asked.begun_on:
            return self._vocabularies.holds(admission.generation)
        return admission.generation in self._vocabularies.preferred()

    def _start(self, call: ClientRequest, admission: Admission) -> None:
        ring = RingRequest(call.ring_id, admission.prompt_tokens, admission.choices)
        try:
            self._ring.start(LiveRequest(call, admission, ring, numerics=admission.numerics))
        except Refused as refused:
            self._ring.end(call, FinishReason.ERROR, refused.status)


def _refuse_unknown() -> NoReturn:
    raise no_model()


def _do_all(batch: list[tuple[_Work, Callable[[], object]]]) -> list[object]:
    """In a worker thread."""
    outcomes = [_do(work.name, task) for work, task in batch]
    if sum(work.size for work, _ in batch) > BATCH_BYTES:
        give_back_free_memory()
    return outcomes


def _do(name: str, task: Callable[[], object]) -> object:
    try:
        return task()
    except Exception as error:
        if not isinstance(error, Refused | MalformedMessage):
            log.exception("work failed", work=name)
        # Its traceback refers to the frames that hold it: with them, the whole request would stay until Python looks
        # for cycles.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error


def _answer(future: asyncio.Future[_T], outcome: _T | Exception) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
