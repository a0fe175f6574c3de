"""Requests that wait, outside the step loop, until threads have made and compiled their constraint's grammar.

Tenants take turns, and none has more than half of the threads, so a tenant's slow grammars hold up only that tenant. A
grammar that was compiled before takes one hop to a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import structlog

from engine_core.errors import ExecutorError, InvalidRequestError, RequestError
from engine_core.pooling.params import PoolingRequest
from engine_core.request import Request
from services.common.process.run import DaemonThreadPool
from services.engine.adapters.registry import Generation
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.tenant_quota import TenantQuota
from text_core.grammar.constraints import ConstraintError
from text_core.grammar.grammar_text import Marker
from text_core.grammar.lark import literal

log = structlog.get_logger(__name__)

THREADS = 4
MAX_WAITING = 1024
"""Waiting requests of all tenants together; a tenant may have as many as remain free."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A submitted request: its form for the core, its constraint and its adapter."""

    core: Request | PoolingRequest
    """Without a grammar, and without an adapter."""
    make_grammar: Callable[[Marker], str] | None = None
    """Makes the constraint's grammar, in a thread; None without a constraint. Raises ``ConstraintError``."""
    adapter: Generation | None = None


class GrammarQueueOwner(Protocol):
    """Receives each request that leaves the queue, unless it was cancelled; called on the event loop."""

    def grammar_ready(self, core_id: str, request: Request, cancelled: set[int]) -> None:
        """``request`` has its compiled grammar; the choices in ``cancelled`` were cancelled meanwhile."""

    def grammar_refused(self, core_id: str, error: RequestError | Status) -> None: ...

    def grammar_too_late(self, core_id: str, request: Request) -> None:
        """The request's deadline has passed."""


@dataclass(slots=True, eq=False)
class _Waiting:
    core_id: str
    core: Request
    request: EngineRequest
    cancelled: set[int] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class GrammarQueue:
    """Compiles the grammars of requests in threads. Use it on the event loop."""

    def __init__(
        self,
        owner: GrammarQueueOwner,
        compile_grammar: Callable[[str], None],
        marker: Marker = literal,
        observe: Callable[[float], None] = lambda seconds: None,
        *,
        retry_after_ms: Callable[[], int] = lambda: 1000,
    ) -> None:
        """``compile_grammar`` blocks, and raises ``InvalidRequestError`` for an unusable grammar.

        ``marker`` writes texts with the model's special tokens; ``observe`` gets each grammar's seconds in its thread.
        """
        self._owner = owner
        self._compile = compile_grammar
        self._marker = marker
        self._observe = observe
        self._retry_after_ms = retry_after_ms
        self._pool = DaemonThreadPool(THREADS, "grammars")
        self._waiting: dict[str, _Waiting] = {}
        """All requests, including those whose grammars threads work on, keyed by core id."""
        self._queues: OrderedDict[str, OrderedDict[str, _Waiting]] = OrderedDict()
        """Requests that no thread has begun, by tenant and core id; no queue is empty, and the first is next."""
        self._threads: Counter[str] = Counter()
        """Busy threads per tenant, including those whose request is gone."""
        self._quota = TenantQuota(MAX_WAITING)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, core_id: str) -> bool:
        return core_id in self._waiting

    def close(self) -> None:
        """Begin nothing more; a thread may still be at work."""
        self._queues.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(self, core_id: str, request: EngineRequest) -> None:
        """Queue a request with a constraint; refused while too many wait."""
        assert isinstance(request.core, Request)  # only answers have a form
        tenant, deadline = request.core.tenant, request.core.deadline
        if not self._quota.has_room(tenant, 1):
            self._owner.grammar_refused(core_id, self._full(tenant))
            return
        self._quota.take(tenant, 1)
        waiting = self._waiting[core_id] = _Waiting(core_id, request.core, request)
        if deadline is not None:
            delay = max(0.0, deadline - time.monotonic())
            waiting.timer = asyncio.get_running_loop().call_later(delay, self._too_late, waiting)
        self._queues.setdefault(tenant, OrderedDict())[core_id] = waiting
        self._begin()

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Cancel a choice (None: all) of a request in this queue. False if that removed the request."""
        waiting = self._waiting[core_id]
        if choice is None:
            self._remove(waiting)
            return False
        waiting.cancelled.add(choice)
        return True

    def _full(self, tenant: str) -> Status:
        free = max(0, self._quota.most - self._quota.total)
        message = (
            f"constraint: this tenant has {self._quota.held(tenant)} requests waiting for their grammars to be "
            f"compiled; it may have no more than this engine has free, now {free} of {self._quota.most}; retry later"
        )
        return Status(Code.RESOURCE_EXHAUSTED, message, self._retry_after_ms(), Reason.QUOTA)

    def _too_late(self, waiting: _Waiting) -> None:
        self._remove(waiting)
        self._owner.grammar_too_late(waiting.core_id, waiting.core)

    def _remove(self, waiting: _Waiting) -> None:
        tenant = waiting.core.tenant
        del self._waiting[waiting.core_id]
        self._quota.give_back(tenant, 1)
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.core_id in (queue := self._queues.get(tenant, OrderedDict())):
            del queue[waiting.core_id]
            if not queue:
                del self._queues[tenant]

    def _begin(self) -> None:
        """Give free threads the next requests, one per tenant in turn."""
        while self._threads.total() < THREADS:
            tenant = next((one for one in self._queues if self._threads[one] < THREADS // 2), None)
            if tenant is None:
                return
            queue = self._queues[tenant]
            _, waiting = queue.popitem(last=False)
            self._queues.move_to_end(tenant)
            if not queue:
                del self._queues[tenant]
            self._threads[tenant] += 1
            work = partial(self._make, waiting.request)
            made = asyncio.get_running_loop().run_in_executor(self._pool, work)
            made.add_done_callback(partial(self._made, waiting))

    def _make(self, request: EngineRequest) -> tuple[str | RequestError | Status, float]:
        """The compiled grammar, or why there is none, and the seconds taken. Runs in a thread."""
        start = time.perf_counter()
        return self._outcome(request), time.perf_counter() - start

    def _outcome(self, request: EngineRequest) -> str | RequestError | Status:
        assert request.make_grammar is not None
        try:
            grammar = request.make_grammar(self._marker)
            self._compile(grammar)
        except ConstraintError as error:
            return InvalidRequestError(f"constraint.{error.field}".rstrip("."), error.problem)
        except RequestError as error:
            return error
        except Refused as refused:
            return refused.status
        except ExecutorError as error:  # the engine has failed; another one may compute the request
            return Status(Code.UNAVAILABLE, str(error), self._retry_after_ms())
        except BaseException as error:  # panics too: without an outcome, the request would wait forever
            log.exception("a grammar cannot be compiled")
            return Status(Code.INTERNAL, f"the grammar cannot be compiled: {type(error).__name__}")
        return grammar

    def _made(self, waiting: _Waiting, made: asyncio.Future[tuple[str | RequestError | Status, float]]) -> None:
        tenant = waiting.core.tenant
        self._threads[tenant] -= 1
        if not self._threads[tenant]:
            del self._threads[tenant]
        if made.cancelled():
            return
        outcome, seconds = made.result()
        self._observe(seconds)
        if self._waiting.get(waiting.core_id) is waiting:  # else it was cancelled, or its deadline has passed
            self._remove(waiting)
            if isinstance(outcome, str):
                core = replace(waiting.core, params=replace(waiting.core.params, grammar=outcome))
                self._owner.grammar_ready(waiting.core_id, core, waiting.cancelled)
            else:
                self._owner.grammar_refused(waiting.core_id, outcome)
        self._begin()
