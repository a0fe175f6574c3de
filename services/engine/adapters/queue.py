"""Requests that wait, outside the step loop, until their adapter is loaded and may be used.

``AdapterSchedule`` says when that is, and which adapters make room; here threads load them. Every request that the
schedule has admitted, or lets wait, is ended there once, whatever ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import structlog

from engine_core.errors import AdapterError, ExecutorError
from engine_core.lora.request import RequestAdapter
from engine_core.lora.schedule import Action, AdapterSchedule, Admit, Load, Refuse
from engine_core.pooling.params import PoolingRequest
from engine_core.request import Request
from services.common.process.run import DaemonThreadPool
from services.engine.adapters.registry import Generation
from services.ring.errors import Code, Reason, Status
from services.ring.tenant_quota import TenantQuota

log = structlog.get_logger(__name__)

THREADS = 2
"""Adapters that are loaded at a time."""


class AdapterLoader(Protocol):
    """The executor's part; both block, from any thread."""

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        """Raises ``AdapterError`` or ``ExecutorError``."""

    def unload_adapter(self, adapter_id: int) -> None:
        """Raises ``ExecutorError``."""


class AdapterQueueOwner(Protocol):
    """Receives each request that leaves the queue, unless it was cancelled; called on the event loop."""

    def adapter_ready(self, core_id: str, request: Request | PoolingRequest, cancelled: set[int]) -> None:
        """``request`` has its loaded adapter; the choices in ``cancelled`` were cancelled meanwhile."""

    def adapter_refused(self, core_id: str, status: Status) -> None: ...

    def adapter_too_late(self, core_id: str, request: Request | PoolingRequest) -> None:
        """The request's deadline has passed."""

    def adapter_moved(self, digest: str, *, loaded: bool) -> None:
        """An adapter was loaded, or made room for others."""

    def adapter_failed(self, generation: Generation) -> None:
        """An adapter could not be loaded: its files may have changed."""


@dataclass(slots=True)
class AdapterCounts:
    """Since the start."""

    requests: int = 0
    hits: int = 0
    """Of these, those whose adapter was loaded when they came."""
    loads: int = 0
    failed_loads: int = 0
    evictions: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    core_id: str
    core: Request | PoolingRequest
    generation: Generation
    cancelled: set[int] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class AdapterQueue:
    """Loads the adapters of requests in threads. Use it on the event loop."""

    def __init__(
        self,
        owner: AdapterQueueOwner,
        loader: AdapterLoader,
        schedule: AdapterSchedule,
        *,
        max_active: int,
        max_bytes: int,
        max_waiting: int,
        observe: Callable[[float], None] = lambda seconds: None,
        retry_after_ms: Callable[[], int] = lambda: 1000,
    ) -> None:
        """``max_active`` and ``max_bytes``: the schedule's. ``max_waiting``: requests of all tenants together; a tenant
        may have as many as remain free. ``observe`` gets the seconds of each load in its thread.
        """
        self._owner = owner
        self._loader = loader
        self._schedule = schedule
        self.max_active = max_active
        """Most adapters of requests under way."""
        self._max_bytes = max_bytes
        self._observe = observe
        self._retry_after_ms = retry_after_ms
        self._pool = DaemonThreadPool(THREADS, "adapters")
        self._waiting: dict[str, _Waiting] = {}
        """Requests that the schedule has not admitted, by core id."""
        self._by_digest: dict[str, dict[str, _Waiting]] = {}
        """The same by the adapter they wait for; none is empty."""
        self._admitted: dict[str, str] = {}
        """Core id to name of the adapter."""
        self._digests: dict[int, str] = {}
        """Of adapters that are loaded, or being loaded, by adapter id."""
        self._quota = TenantQuota(max_waiting)
        self.counts = AdapterCounts()
        self.num_loaded = 0
        """Adapters that are loaded, or being loaded. Any thread may read it, like the next two."""
        self.num_active = 0
        """Of these, those of requests under way, and those being loaded."""
        self.nbytes = 0
        """Bytes of those that are loaded, or being loaded."""

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def __contains__(self, core_id: str) -> bool:
        return core_id in self._waiting

    def names(self) -> tuple[list[str], list[str]]:
        """Names of the adapters that requests compute with, and of those that requests wait for. From any thread."""
        waiting = {each.generation.name for each in list(self._waiting.values())}
        return sorted(set(self._admitted.copy().values())), sorted(waiting)

    def close(self) -> None:
        """Load nothing more; a thread may still be at work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(
        self, core_id: str, core: Request | PoolingRequest, generation: Generation, cancelled: Iterable[int] = ()
    ) -> None:
        """Queue a request for an adapter; refused while too many wait. ``cancelled``: choices that were."""
        digest, tenant = generation.file.digest, core.tenant
        is_loaded, has_room = self._schedule.holds(digest), self._quota.has_room(tenant, 1)
        self.counts.requests += 1
        self.counts.hits += is_loaded
        if not (has_room or is_loaded):
            self._owner.adapter_refused(core_id, self._full(tenant))
            return
        self._quota.take(tenant, 1)
        waiting = self._waiting[core_id] = _Waiting(core_id, core, generation, set(cancelled))
        self._by_digest.setdefault(digest, {})[core_id] = waiting
        if core.deadline is not None:
            delay = max(0.0, core.deadline - time.monotonic())
            waiting.timer = asyncio.get_running_loop().call_later(delay, self._too_late, waiting)
        self._do(self._schedule.add(core_id, tenant, digest, generation.file.nbytes), self._too_large(generation))
        if not has_room and self._waiting.get(core_id) is waiting:
            self._remove(waiting)
            self.end(core_id)
            self._owner.adapter_refused(core_id, self._full(tenant))

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Cancel a choice (None: all) of a request that waits. False if that removed the request."""
        waiting = self._waiting[core_id]
        if choice is not None:
            waiting.cancelled.add(choice)
            return True
        self._remove(waiting)
        self.end(core_id)
        return False

    def end(self, core_id: str) -> None:
        """The core holds nothing of a request any more, or never will. Idempotent."""
        self._admitted.pop(core_id, None)
        self._do(self._schedule.end(core_id))

    def _do(self, actions: list[Action], refusal: Status | None = None) -> None:
        """``refusal``: the reason of those that are refused."""
        for action in actions:
            match action:
                case Admit(core_id, adapter_id):
                    waiting = self._waiting[core_id]
                    self._remove(waiting)
                    self._admitted[core_id] = waiting.generation.name
                    adapter = RequestAdapter(adapter_id, waiting.generation.file.digest)
                    self._owner.adapter_ready(core_id, replace(waiting.core, adapter=adapter), waiting.cancelled)
                case Load():
                    self._begin(action)
                case Refuse(core_id):
                    assert refusal is not None
                    self._remove(self._waiting[core_id])
                    self._owner.adapter_refused(core_id, refusal)
        schedule = self._schedule
        self.num_loaded, self.num_active, self.nbytes = schedule.num_loaded, schedule.num_active, schedule.nbytes

    def _begin(self, load: Load) -> None:
        for adapter_id in load.evicted:
            self.counts.evictions += 1
            self._owner.adapter_moved(self._digests.pop(adapter_id), loaded=False)
        self._digests[load.adapter_id] = load.digest
        generation = next(iter(self._by_digest[load.digest].values())).generation
        work = partial(self._load, load, generation)
        done = asyncio.get_running_loop().run_in_executor(self._pool, work)
        done.add_done_callback(partial(self._loaded, load, generation))

    def _load(self, load: Load, generation: Generation) -> tuple[Status | None, float]:
        """Why the adapter was not loaded, or None; and the seconds taken. Runs in a thread."""
        start = time.perf_counter()
        return self._outcome(load, generation), time.perf_counter() - start

    def _outcome(self, load: Load, generation: Generation) -> Status | None:
        try:
            for adapter_id in load.evicted:
                self._loader.unload_adapter(adapter_id)
            self._loader.load_adapter(load.adapter_id, generation.path, load.digest)
        except AdapterError as error:  # such as files that have changed: another engine may have it
            message = f"adapter: {generation.name!r} cannot be loaded: {error}"
            return Status(Code.FAILED_PRECONDITION, message, None, Reason.ADAPTER_GONE, "adapter")
        except ExecutorError as error:  # the engine has failed; another one may compute the request
            return Status(Code.UNAVAILABLE, str(error), self._retry_after_ms())
        except BaseException as error:  # without an outcome, its requests would wait forever
            log.exception("an adapter cannot be loaded", adapter=generation.name)
            return Status(Code.INTERNAL, f"adapter: {generation.name!r} cannot be loaded: {type(error).__name__}")
        return None

    def _loaded(self, load: Load, generation: Generation, done: asyncio.Future[tuple[Status | None, float]]) -> None:
        if done.cancelled():
            return
        failure, seconds = done.result()
        told = {"adapter": generation.name, "digest": load.digest, "seconds": round(seconds, 3)}
        if failure is None:
            self.counts.loads += 1
            self._observe(seconds)
            log.info("adapter loaded", **told, evicted=len(load.evicted), loaded=self._schedule.num_loaded)
            self._owner.adapter_moved(load.digest, loaded=True)
            self._do(self._schedule.loaded(load.adapter_id))
        else:
            self.counts.failed_loads += 1
            log.warning("an adapter was not loaded", **told, reason=failure.message)
            del self._digests[load.adapter_id]
            waiting = self._by_digest.get(load.digest, {}).values()  # of other names, too, whose folders may be sound
            for each in dict.fromkeys((generation, *(one.generation for one in waiting))):
                self._owner.adapter_failed(each)
            self._do(self._schedule.failed(load.adapter_id), failure)

    def _too_late(self, waiting: _Waiting) -> None:
        self._remove(waiting)
        self.end(waiting.core_id)
        self._owner.adapter_too_late(waiting.core_id, waiting.core)

    def _remove(self, waiting: _Waiting) -> None:
        """It waits no longer."""
        del self._waiting[waiting.core_id]
        same = self._by_digest[waiting.generation.file.digest]
        del same[waiting.core_id]
        if not same:
            del self._by_digest[waiting.generation.file.digest]
        self._quota.give_back(waiting.core.tenant, 1)
        if waiting.timer is not None:
            waiting.timer.cancel()

    def _full(self, tenant: str) -> Status:
        free = max(0, self._quota.most - self._quota.total)
        message = (
            f"adapter: this tenant has {self._quota.held(tenant)} requests waiting for their adapters; it may have no "
            f"more than this engine has free, now {free} of {self._quota.most} (--max-num-queued-reqs); retry later"
        )
        return Status(Code.RESOURCE_EXHAUSTED, message, self._retry_after_ms(), Reason.QUOTA)

    def _too_large(self, generation: Generation) -> Status:
        message = (
            f"adapter: {generation.name!r} takes {generation.file.nbytes} bytes; this engine has {self._max_bytes} for "
            "adapters: raise --max-cpu-loras or --max-lora-rank"
        )
        return Status(Code.FAILED_PRECONDITION, message, None, Reason.UNSUPPORTED, "adapter")
