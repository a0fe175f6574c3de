"""The main loop of a rank's process: makes a worker, serves the executor's calls and steps, and sends heartbeats."""

from __future__ import annotations

import gc
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue, SimpleQueue
from typing import TYPE_CHECKING, Any

from setproctitle import setproctitle

from engine_core.errors import EngineError
from engine_core.executor.ranks.connection import (
    BEAT,
    BEAT_INTERVAL,
    AdapterLoaded,
    Call,
    Grammar,
    LoadAdapter,
    Progress,
    Raised,
    RankConnections,
    RankReport,
    RankStart,
    Returned,
    Step,
    StepReply,
    UnloadAdapter,
    portable,
)

if TYPE_CHECKING:
    from engine_core.worker.worker import Worker

_PROGRESS_INTERVAL = 0.1
"""Minimum seconds between progress reports."""
_MOST_GRAMMARS = 64
"""Most grammars waiting to be compiled."""


def run_rank(connections: RankConnections, set_title: Callable[[str], None] = setproctitle) -> None:
    """Serve until the executor ends the rank, or is gone; ``set_title`` names this process in ``ps``."""
    signs = _Signs(connections)
    with suppress(EOFError, ConnectionError):
        start: RankStart = connections.calls.recv()
        set_title(start.title)
        worker = _answered(connections, lambda report: _make_worker(start, report))
        if worker is not None and _serve(worker, connections, signs):
            worker.close()
            return
        while connections.calls.recv() is not None:  # after a failure: ending now would look like a crash
            pass


def _make_worker(start: RankStart, report: Callable[[Any], None]) -> Worker:
    from engine_core.executor.ranks.identity import identity_of  # here, as importing torch takes seconds
    from engine_core.model_loader.checkpoint import open_checkpoint
    from engine_core.worker.worker import Worker

    config = start.config
    checkpoint = open_checkpoint(config.model, config.load, config.parallel)
    worker = Worker(config, checkpoint, start.rank)
    report(RankReport(platform.node(), os.getpid(), identity_of(checkpoint)))
    return worker


def _serve(worker: Worker, connections: RankConnections, signs: _Signs) -> bool:
    """Serve until the executor ends the rank (True), or a step fails (False)."""
    send = connections.calls.send if worker.takes_one_step else _Replies(connections).put
    grammars, adapters = _Grammars(worker), _Adapters(worker, signs)
    while (message := connections.calls.recv()) is not None:
        if isinstance(message, Call):
            _answered(connections, lambda reply, call=message: reply(Returned(_call(worker, call, reply))))  # type: ignore[misc]
            continue
        if isinstance(message, Grammar):
            grammars.put(message)
            continue
        if isinstance(message, LoadAdapter):
            adapters.put(message)
            continue
        if isinstance(message, UnloadAdapter):
            worker.unload_adapter(message.adapter_id)
            continue
        try:
            reply = _compute(worker, message)
        except Exception as error:
            traceback.print_exc()
            signs.tell(Raised(portable(error), message.plan.step_id))
            return False
        if reply is not None:
            send(reply)
    return True


def _call(worker: Worker, call: Call, reply: Callable[[Any], None]) -> Any:
    method = getattr(worker, call.method)
    if call.reports_progress:
        return method(*call.arguments, _throttled(reply))
    result = method(*call.arguments)
    if call.method == "warm_up":  # existing objects stay: without them, collections are too short to delay heartbeats
        gc.collect()
        gc.freeze()
    return result


def _throttled(reply: Callable[[Any], None]) -> Callable[[int, int], None]:
    """A callback that reports progress, at most every ``_PROGRESS_INTERVAL``, and at the end."""
    told = 0.0

    def report(done: int, total: int) -> None:
        nonlocal told
        if done == total or time.monotonic() - told >= _PROGRESS_INTERVAL:
            told = time.monotonic()
            reply(Progress(done, total))

    return report


def _compute(worker: Worker, step: Step) -> StepReply | None:
    if not worker.rank.samples:
        for step_id, sampled in step.results:
            worker.commit(step_id, sampled)
        worker.follow(step.plan)
        return None
    pending = worker.launch(step.plan)
    result = pending.result()
    assert pending.sampled is not None
    return StepReply(result, pending.sampled)


def _answered(connections: RankConnections, answer: Callable[[Callable[[Any], None]], Any]) -> Any:
    """Return ``answer(send)``, where ``send`` replies; an exception becomes a ``Raised`` reply, and returns None."""
    try:
        return answer(connections.calls.send)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        if not isinstance(error, EngineError):
            traceback.print_exc()
        connections.calls.send(Raised(portable(error)))
        return None


class _Grammars:
    """Compiles grammars in a thread, one at a time, before a plan brings them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting: Queue[Grammar] = Queue(_MOST_GRAMMARS)
        threading.Thread(target=self._compile, name="grammars", daemon=True).start()

    def put(self, grammar: Grammar) -> None:
        with suppress(Full):  # then the step that brings it compiles it
            self._waiting.put_nowait(grammar)

    def _compile(self) -> None:
        while True:
            grammar = self._waiting.get()
            self._worker.compile_grammar(grammar.text)


class _Adapters:
    """Loads adapters in a thread, one at a time. The executor has few loads under way."""

    def __init__(self, worker: Worker, signs: _Signs) -> None:
        self._worker = worker
        self._signs = signs
        self._waiting: SimpleQueue[LoadAdapter] = SimpleQueue()
        threading.Thread(target=self._load, name="adapters", daemon=True).start()

    def put(self, adapter: LoadAdapter) -> None:
        self._waiting.put(adapter)

    def _load(self) -> None:
        with suppress(OSError):  # the executor is gone; the reading thread notices, too
            while True:
                adapter, error = self._waiting.get(), None
                try:
                    self._worker.load_adapter(*adapter)
                except Exception as raised:
                    error = portable(raised)
                self._signs.tell(AdapterLoaded(adapter.adapter_id, error))


class _Replies:
    """Sends replies to steps in a thread: the executor may send further steps before it reads replies, and if both
    sides only wrote, both would wait for ever.
    """

    def __init__(self, connections: RankConnections) -> None:
        self._connections = connections
        self._waiting: SimpleQueue[StepReply] = SimpleQueue()
        threading.Thread(target=self._send, name="replies", daemon=True).start()

    def put(self, reply: StepReply) -> None:
        self._waiting.put(reply)

    def _send(self) -> None:
        with suppress(OSError):  # the executor is gone; the reading thread notices, too
            while True:
                self._connections.calls.send(self._waiting.get())


class _Signs:
    """Sends heartbeats from its own thread, and reports a step that failed, and what came of loading adapters."""

    def __init__(self, connections: RankConnections) -> None:
        """Start the heartbeats."""
        self._connections = connections
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, name="beats", daemon=True).start()

    def tell(self, news: Raised | AdapterLoaded) -> None:
        with self._lock:
            self._connections.signs.send(news)

    def _beat(self) -> None:
        while True:
            try:
                with self._lock:
                    self._connections.signs.send_bytes(BEAT)
            except OSError:  # the executor is gone or closed: this process is no longer needed
                sys.stderr.flush()
                os._exit(1)
            time.sleep(BEAT_INTERVAL)
