"""The end of a process: SIGTERM or SIGINT starts a drain, and a second signal cuts it short.

A drain refuses new requests and finishes the present ones within a grace period; each service says how.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from services.common.config.errors import ExitCode

log = structlog.get_logger()

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MARGIN = 2.0
"""Seconds beyond its grace after which a drain that has not returned is cancelled."""
_IDLE_POLL = 0.05
"""Seconds between two checks of whether the service is idle."""


class Drain:
    """When and how this process ends. Use it on the event loop."""

    def __init__(self, grace: float) -> None:
        """``grace``: default seconds for a drain."""
        self._default_grace = self._grace = grace
        self._begun = asyncio.Event()
        self._cut = asyncio.Event()
        self.exit_code: int = ExitCode.OK
        """The process's exit code."""

    @property
    def cut_short(self) -> bool:
        """Whether a second signal asked the process to stop at once."""
        return self._cut.is_set()

    def begin(self, exit_code: int = ExitCode.OK, grace: float | None = None) -> None:
        """Begin a drain of ``grace`` seconds; later calls change only an exit code that is still OK."""
        self.exit_code = self.exit_code or exit_code
        if not self._begun.is_set():
            self._grace = self._default_grace if grace is None else grace
            self._begun.set()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """While the block runs, the first signal begins a drain, and the next one cuts it short."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._begun.is_set():
            log.warning("stopping at once", signal=number.name)
            self.exit_code = 128 + number
            self._cut.set()
        else:
            log.info("draining", signal=number.name, grace=self._default_grace)
            self.begin()

    async def wait_begun(self, working: asyncio.Task[None]) -> None:
        """Return when a drain begins; raises an earlier exception of ``working``."""
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait({working, begun}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            await begun
        finally:
            begun.cancel()

    async def run(self, finish: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        """Run ``finish(grace)`` until it returns, is cut short, or exceeds its grace by ``_MARGIN`` seconds."""
        finishing, cut = asyncio.create_task(finish(self._grace)), asyncio.create_task(self._cut.wait())
        await asyncio.wait({finishing, cut}, timeout=self._grace + _MARGIN, return_when=asyncio.FIRST_COMPLETED)
        if not finishing.done() and not self._cut.is_set():
            log.warning("the drain did not end in time", grace=self._grace)
        await end_task(cut)
        await end_task(finishing)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` unless it is done, and log its exception."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception:
        log.exception("failed while stopping")


async def wait_until_idle(busy: Callable[[], int], grace: float) -> int:
    """Wait until ``busy()`` is 0, for at most ``grace`` seconds; returns its last value."""
    end = time.monotonic() + grace
    while busy() and time.monotonic() < end:  # noqa: ASYNC110 - runs once per process, polls state of several owners
        await asyncio.sleep(_IDLE_POLL)
    return busy()
