"""Processes that decode pictures: bounded in number, memory and time, and fair between tenants.

Each has a thread here, which writes the file, reads the pixels and hashes them: nothing holds up the event loop.
A picture that ends its process is refused, and the next one gets a new process. Prepared pictures are kept for a while:
a conversation sends the same ones again in each turn. Tenants share none, so that nobody learns what others send.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import structlog

from services.common.process.run import DaemonThreadPool
from services.processor.media.fair_queue import FairQueue
from services.processor.media.process import PictureProcess, ProcessFailed, TooSlow
from services.ring.errors import Code, Reason, Refused, invalid_field, retry_after_ms
from services.ring.tenant_quota import TenantQuota
from text_core.pictures.base import PictureError, PictureProcessor
from text_core.pictures.limits import PictureLimits
from text_core.pictures.prepared import PreparedPicture
from text_core.pictures.registry import parse_facts, processor_of

log = structlog.get_logger(__name__)

FIELD = "media"
MAX_WAITING_BYTES = 128 << 20
"""Bound on the files that wait or are decoded; one larger file may wait alone."""
MAX_CACHED_BYTES = 64 << 20
"""Bound on the pixels and files' digests of prepared pictures that are kept."""
MIN_CHARGE = 16 << 10
"""Bytes charged at least for a picture that waits: even an empty one takes time."""
MAX_PICTURES = 2000
"""After so many pictures a process is replaced, so that what a library leaks is bounded."""
_HASHED_INLINE = 64 << 10
"""Files up to this size are hashed on the event loop: it takes less time than a thread."""
_MAX_MODELS = 16
_SMOOTHING = 0.2

_Key = tuple[str, bytes, str, bytes]
"""Tenant, digest of the facts, declared type and digest of the file."""


@dataclass(slots=True)
class PoolCounts:
    """What the pool has done, for metrics."""

    prepared: int = 0
    refused: int = 0
    """Pictures that could not be used."""
    from_cache: int = 0
    started: int = 0
    """Processes."""
    seconds: float = 0.0
    """Time that processes worked."""


@dataclass(frozen=True, slots=True)
class _Model:
    facts: bytes
    digest: bytes
    processor: PictureProcessor


@dataclass(eq=False, slots=True)
class _Job:
    tenant: str
    key: _Key
    model: _Model
    data: bytes
    mime: str
    field: str
    """Names the picture in errors."""
    answer: asyncio.Future[PreparedPicture]
    worker: _Worker | None = None
    """While it is decoded."""


@dataclass(eq=False, slots=True)
class _Worker:
    """A process, or the place of one."""

    process: PictureProcess | None = None
    is_cancelled: bool = False
    """Nobody waits for what it does."""


class PicturePool:
    """Prepares pictures in child processes, which it starts when they are needed first."""

    def __init__(
        self,
        limits: PictureLimits,
        processes: int = 1,
        *,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_cached_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self._limits = limits
        self._threads = DaemonThreadPool(processes, "pictures")
        self._workers = [_Worker() for _ in range(processes)]
        self._idle = list(self._workers)
        self._queue: FairQueue[_Job] = FairQueue()
        self._bytes = TenantQuota(max_waiting_bytes)
        self._models: OrderedDict[bytes, _Model] = OrderedDict()
        self._cache = _Cache(max_cached_bytes)
        self._is_closed = False
        self._usual_seconds = 0.0
        """Of a picture, smoothed."""
        self.waiting = 0
        """Pictures that wait or are decoded."""
        self.counts = PoolCounts()

    def close(self) -> None:
        """End the processes; pictures that wait are refused with UNAVAILABLE."""
        self._is_closed = True
        for job in self._queue.clear():
            _fail(job, Refused(Code.UNAVAILABLE, "the processor is shutting down", reason=Reason.DRAINING))
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, tenant: str, facts: bytes, data: bytes, mime: str, field: str = FIELD) -> PreparedPicture:
        """Decode a picture and make its views. Cancellation gives up its place, or ends its process.

        ``facts``: the model's, as ``write_facts`` writes them. ``mime``: declared type, such as image/png; empty if
        none is known. ``field``: names the picture in errors. Raises ``Refused``: INVALID_ARGUMENT if it cannot be
        used, RESOURCE_EXHAUSTED while too much waits, or the machine is too busy.
        """
        model = self._model(facts)
        if len(data) > self._limits.max_bytes:
            raise invalid_field(
                field,
                f"its file has {len(data)} bytes, more than the {self._limits.max_bytes} that are accepted; send a "
                "smaller one",
                reason=Reason.TOO_LARGE,
            )
        charge = max(len(data), MIN_CHARGE)
        self._check_room(tenant, charge, field)
        self._bytes.take(tenant, charge)
        self.waiting += 1
        try:
            key = (tenant, model.digest, mime, await _file_digest(data))
            if (kept := self._cache.get(key)) is not None:
                self.counts.from_cache += 1
                return kept
            answer = asyncio.get_running_loop().create_future()
            return await self._decoded(_Job(tenant, key, model, data, mime, field, answer))
        except PictureError as error:
            self.counts.refused += 1
            raise invalid_field(field, str(error)) from None
        finally:
            self.waiting -= 1
            self._bytes.give_back(tenant, charge)

    def _model(self, facts: bytes) -> _Model:
        digest = sha256(facts).digest()
        if (known := self._models.get(digest)) is None:
            try:
                known = _Model(facts, digest, processor_of(parse_facts(facts)))
            except ValueError as error:
                text = f"this model's pictures cannot be prepared here: {error}"
                raise Refused(Code.FAILED_PRECONDITION, text) from None
            self._models[digest] = known
            if len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(digest)
        return known

    def _check_room(self, tenant: str, charge: int, field: str) -> None:
        if self._is_closed:
            raise Refused(Code.UNAVAILABLE, "the processor is shutting down", reason=Reason.DRAINING)
        if not self._bytes.has_room(tenant, charge):
            free = max(0, self._bytes.most - self._bytes.total)
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{field}: this tenant has {self._bytes.held(tenant)} bytes of pictures waiting to be decoded, and "
                f"this one {charge}; together they may be no more than there is free, now {free} of {self._bytes.most} "
                "bytes; retry later",
                retry_after_ms=retry_after_ms(self.waiting * self._usual_seconds / len(self._workers)),
                reason=Reason.QUOTA,
                field=field,
            )

    # Work

    async def _decoded(self, job: _Job) -> PreparedPicture:
        self._queue.append(job.tenant, job)
        self._start()
        try:
            return await job.answer
        except asyncio.CancelledError:
            self._queue.remove(job.tenant, job)
            if (worker := job.worker) is not None and worker.process is not None:
                worker.is_cancelled = True
                worker.process.kill()
            raise

    def _start(self) -> None:
        """Give the next pictures to processes that have nothing to do."""
        while self._idle and self._queue and not self._is_closed:
            job = self._queue.take()
            if (kept := self._cache.get(job.key)) is not None:  # decoded while this one waited
                self.counts.from_cache += 1
                self._queue.done(job.tenant, 0.0)
                if not job.answer.done():
                    job.answer.set_result(kept)
                continue
            job.worker = worker = self._idle.pop()
            worker.is_cancelled = False
            begun = time.monotonic()
            done = asyncio.get_running_loop().run_in_executor(self._threads, self._work, worker, job)
            done.add_done_callback(partial(self._finish, job, begun))

    def _work(self, worker: _Worker, job: _Job) -> PreparedPicture:
        """In a thread. Raises ``PictureError``, ``TooSlow``, ``ProcessFailed``."""
        process = worker.process
        if process is not None and (process.pictures >= MAX_PICTURES or not process.is_alive):
            process.close()
            process = worker.process = None
        if process is None:
            process = worker.process = PictureProcess(self._limits)
            self.counts.started += 1
            if self._is_closed:
                process.kill()
        try:
            return process.prepare(job.model.facts, job.model.processor, job.data, job.mime)
        except ProcessFailed:
            process.kill()
            raise

    def _finish(self, job: _Job, begun: float, done: asyncio.Future[PreparedPicture]) -> None:
        worker, job.worker = job.worker, None
        assert worker is not None
        seconds = time.monotonic() - begun
        self._queue.done(job.tenant, seconds)
        self._usual_seconds += _SMOOTHING * (seconds - self._usual_seconds)
        self.counts.seconds += seconds
        self._idle.append(worker)
        error = None if done.cancelled() else done.exception()
        if done.cancelled():
            _fail(job, Refused(Code.UNAVAILABLE, "the processor is shutting down", reason=Reason.DRAINING))
        elif error is None:
            self.counts.prepared += 1
            prepared = done.result()
            self._cache.add(job.key, prepared)
            if not job.answer.done():
                job.answer.set_result(prepared)
        else:
            _fail(job, self._error(error, worker, job.field))
        self._start()

    def _error(self, error: BaseException, worker: _Worker, field: str) -> Exception:
        if isinstance(error, PictureError):
            if not worker.is_cancelled and worker.process is not None and not worker.process.is_alive:
                log.warning("a picture ended its process", reason=str(error))
            error.__traceback__ = None
            return error
        if isinstance(error, TooSlow):
            log.warning("a picture could not be decoded in time", reason=str(error))
            text = f"{field}: {error}; retry later"
            return Refused(Code.RESOURCE_EXHAUSTED, text, retry_after_ms=retry_after_ms(None), field=field)
        log.error("a process that decodes pictures failed", error=repr(error))
        text = "pictures cannot be decoded now: a process failed; see the processor's log, or retry later"
        return Refused(Code.UNAVAILABLE, text, retry_after_ms=retry_after_ms(None))


def _fail(job: _Job, error: Exception) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)


async def _file_digest(data: bytes) -> bytes:
    if len(data) <= _HASHED_INLINE:
        return sha256(data).digest()
    return await asyncio.to_thread(lambda: sha256(data).digest())


@dataclass(slots=True)
class _Cache:
    """Prepared pictures, those used longest ago first."""

    most: int
    _kept: OrderedDict[_Key, PreparedPicture] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def get(self, key: _Key) -> PreparedPicture | None:
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return found

    def add(self, key: _Key, prepared: PreparedPicture) -> None:
        if key in self._kept or prepared.nbytes > self.most:
            return
        self._kept[key] = prepared
        self._bytes += prepared.nbytes
        while self._bytes > self.most:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes
