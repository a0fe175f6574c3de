"""A thread that detects when a rank dies, is cut off, hangs, or reports a failed step, even while all is idle.

It also takes in what ranks say about adapters.
"""

from __future__ import annotations

import os
import pickle
import select
import threading
import time
from collections.abc import Callable, Sequence

from engine_core.errors import ExecutorError, RankFailedError
from engine_core.executor.ranks.connection import BEAT, BEAT_INTERVAL, AdapterLoaded, Raised
from engine_core.executor.ranks.process import RankProcess

_CAUSE_TICKS = 4
"""Ticks to wait for the cause, once a rank has reported that another is missing."""
_STARVED = 5.0
"""Seconds of silence allowed to a rank that wants to run: it may only wait for a processor."""
_ENDING_SECONDS = 0.3
"""Time for the system to report how a process ended whose connections are closed."""


class RankMonitor:
    """Watches the processes of ranks from their start on; heartbeats only after ``expect_beats``."""

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        failed: Callable[[ExecutorError], None],
        silence: float,
        loaded: Callable[[AdapterLoaded], None] = lambda news: None,
    ) -> None:
        """``failed`` is called once, in the monitor's thread, which then ends; ``loaded``, there, too, for each rank's
        ``AdapterLoaded``.

        A serving rank must send a heartbeat every ``silence`` seconds, counted in the monitor's ticks: if the whole
        machine stalls, so does the count.
        """
        self._failed = failed
        self._loaded = loaded
        self._silent = dict.fromkeys(ranks, 0)
        """Ticks of ``BEAT_INTERVAL`` since the last heartbeat."""
        self._silence = silence
        self._expects_beats = False
        self._secondary: tuple[ExecutorError, int] | None = None
        """The error of a rank that misses another, and the ticks left to wait for the cause."""
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._by_descriptor: dict[int, RankProcess] = {}
        for rank in ranks:
            for descriptor in (rank.ended, rank.connections.signs.fileno()):
                if descriptor is not None:
                    self._by_descriptor[descriptor] = rank
                    self._poll.register(descriptor, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="rank monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def expect_beats(self) -> None:
        """Treat silence as a failure from now on."""
        self._silent = dict.fromkeys(self._silent, 0)
        self._expects_beats = True

    def stop(self) -> None:
        """End the thread, after which no failure is reported. Call it once."""
        os.close(self._wake_write)
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()
        os.close(self._wake_read)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # nobody would watch any more
            failure = ExecutorError(f"the ranks cannot be watched: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._failed(failure)

    def _watch(self) -> None:
        next_tick = time.monotonic() + BEAT_INTERVAL
        while True:
            ready = [each for each, _ in self._poll.poll(max(0.0, 1000 * (next_tick - time.monotonic())))]
            if self._wake_read in ready:
                return
            error = self._read(ready)
            if error is None and time.monotonic() >= next_tick:
                next_tick = time.monotonic() + BEAT_INTERVAL  # one tick, however late
                error = self._tick()
            if error is not None:
                self._failed(error)
                return

    def _read(self, ready: list[int]) -> ExecutorError | None:
        for descriptor in ready:
            rank = self._by_descriptor[descriptor]
            if descriptor == rank.ended:
                return ExecutorError(f"{rank} {rank.ending(_ENDING_SECONDS) or 'has ended'}")
            try:
                message = rank.connections.signs.recv_bytes()
            except (EOFError, OSError):
                return ExecutorError(
                    f"{rank} {rank.ending(_ENDING_SECONDS) or 'has lost its connection to the engine'}"
                )
            self._silent[rank] = 0
            if message == BEAT:
                continue
            raised: Raised | AdapterLoaded = pickle.loads(message)
            if isinstance(raised, AdapterLoaded):
                self._loaded(raised)
                continue
            cause = f"{type(raised.error).__name__}: {raised.error}"
            error = ExecutorError(f"step {raised.step_id} failed on {rank}: {cause}")
            error.__cause__ = raised.error
            if not isinstance(raised.error, RankFailedError):
                return error
            self._secondary = self._secondary or (error, _CAUSE_TICKS)
        return None

    def _tick(self) -> ExecutorError | None:
        if self._secondary is not None:
            error, ticks = self._secondary
            if ticks == 0:
                return error
            self._secondary = error, ticks - 1
        if self._expects_beats:
            for rank in self._silent:
                self._silent[rank] += 1
                seconds = round((self._silent[rank] - 1) * BEAT_INTERVAL, 1)
                # In this order: if the rank no longer wants to run, any beat it has sent since the last read is seen.
                is_silent = seconds >= self._silence and not rank.wants_to_run() and not rank.connections.signs.poll()
                if is_silent or seconds >= _STARVED:
                    return ExecutorError(f"{rank} has not beaten for {seconds:.1f} s: it hangs, or is cut off")
        return None
