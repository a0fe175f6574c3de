"""Keeps child processes running: starts, watches, restarts and stops them, and leaves no orphans.

Until restarts are allowed (once all children have served), a death ends all children, so that the user sees why one
cannot start. From then on, dead children are restarted after a pause; one that dies too often ends all, unless the
others do not need it.
Children are stopped in reverse order: each drains while those it depends on still run. A child without heartbeats is
killed. If the supervisor itself is killed, the kernel kills its children (``die_with_parent`` of
``services.common.process.run``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from services.cli.supervise.child_logs import death_reason
from services.common.config.errors import ExitCode, FatalError
from services.common.links.redial import Backoff
from services.common.process.heartbeat import HEARTBEAT_INTERVAL, HEARTBEAT_LIMITS, HeartbeatLimits, HeartbeatMonitor

log = structlog.get_logger()

_LINE_LIMIT = 2**20
_TAIL_LINES = 20
_KILL_MARGIN = 5.0
"""Seconds beyond the grace that a child has to exit after its drain."""
_LONGEST_PAUSE = 5.0
"""Seconds before a restart."""
_PIPE_TIMEOUT = 1.0
"""Seconds to read the rest of a dead child's output."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The program of one child."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    """The child's whole environment, to which the supervisor adds variables for heartbeats and its pid."""
    needed: bool = True
    """Whether all end if it dies too often; else it is restarted forever."""


class ChildFailed(FatalError):
    """A child died before restarts were allowed, or too often."""


class Child:
    """One child across its restarts."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.pid: int | None = None
        """The pid of its process; None while it does not run."""
        self.restarts = RestartPolicy(Backoff(0.2, _LONGEST_PAUSE))
        self.hung: str | None = None
        """Why the supervisor killed its present or last process; None if it did not."""
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """Last output lines of its present or last process."""
        self.ended = asyncio.Event()
        """Set while it does not run."""
        self.ended.set()

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the child and all processes that it started."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class Supervisor:
    """Runs children until ``stop``, or until one fails for good."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        grace: float,
        on_line: Callable[[str, str], None],
        on_change: Callable[[], None] = lambda: None,
        limits: HeartbeatLimits = HEARTBEAT_LIMITS,
    ) -> None:
        """``specs``: a child may depend on those before it.

        ``grace``: seconds that a child has to drain. ``on_line(name, line)`` gets the children's output;
        ``on_change()`` is called when a child has started or died.
        """
        self.children = [Child(spec) for spec in specs]
        self._grace = grace
        self._on_line, self._on_change = on_line, on_change
        self._limits = limits
        self.stopping = asyncio.Event()
        """Set when the supervisor begins to stop, for any reason."""
        self._cut = asyncio.Event()
        self._may_restart = False

    def allow_restarts(self) -> None:
        """Call once all children have served: from now on a child that dies is restarted."""
        self._may_restart = True

    def stop(self) -> None:
        """Drain and stop the children one after the other. A second call kills them at once."""
        if self.stopping.is_set():
            self._cut.set()
        self.stopping.set()

    async def run(self) -> None:
        """Keep the children running; return after ``stop`` when all have ended. Raises ``ChildFailed``."""
        keepers = [asyncio.create_task(self._keep_running(child)) for child in self.children]
        stopping = asyncio.create_task(self.stopping.wait())
        failed = True
        try:
            await asyncio.wait([*keepers, stopping], return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
            failed = False
        finally:
            self.stopping.set()
            try:
                await self._stop_in_order(0.0 if failed else self._grace)
            finally:
                for child in self.children:
                    child.kill_group()
                await asyncio.gather(stopping, *keepers, return_exceptions=True)

    async def _stop_in_order(self, grace: float) -> None:
        end = time.monotonic() + grace
        for child in reversed(self.children):
            child.signal(signal.SIGTERM)
            patience = max(end - time.monotonic(), 0.0) + _KILL_MARGIN
            ended, cut = asyncio.create_task(child.ended.wait()), asyncio.create_task(self._cut.wait())
            await asyncio.wait({ended, cut}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                if not self._cut.is_set():
                    log.warning("killed", child=child.spec.name, reason=f"it did not end within {patience:.1f} s")
                child.kill_group()
            ended.cancel()
            cut.cancel()

    async def _keep_running(self, child: Child) -> None:
        """Start ``child``, and restart it whenever it dies, until the supervisor stops."""
        while not self.stopping.is_set():
            started = time.monotonic()
            code = await self._run_once(child)
            if self.stopping.is_set():
                return
            pause = self._after_death(child, code)
            log.warning(
                "died",
                child=child.spec.name,
                code=code,
                lived=round(time.monotonic() - started, 1),
                restart_in=round(pause, 1),
                reason=self._reason(child, code),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), pause)

    async def _run_once(self, child: Child) -> int:
        """Start ``child`` and wait for its end; returns its exit code, or the negative number of a signal."""
        spec = child.spec
        # Use our own pipe: with asyncio's, ``wait`` would wait until all of its holders are gone, even grandchildren.
        reading, writing = os.pipe()
        heartbeats = HeartbeatMonitor(self._limits)
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env={**spec.env, **heartbeats.environment()},
                pass_fds=[heartbeats.writing],
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops its children in order
            )
        except BaseException:
            os.close(reading)
            heartbeats.close()
            raise
        finally:
            os.close(writing)
            os.close(heartbeats.writing)
        child.pid, child.hung = process.pid, None
        child.tail.clear()
        child.ended.clear()
        self._on_change()
        reader = asyncio.create_task(self._read(child, reading))
        monitor = asyncio.create_task(self._monitor(child, heartbeats))
        try:
            if self.stopping.is_set():  # the stop was requested during the start of this child
                child.signal(signal.SIGTERM)
            code = await process.wait()
            child.kill_group()  # processes that the child left running
            await asyncio.wait({reader}, timeout=_PIPE_TIMEOUT)
        finally:
            reader.cancel()
            monitor.cancel()
            await asyncio.gather(reader, monitor, return_exceptions=True)
            heartbeats.close()
            child.pid = None
            child.ended.set()
            self._on_change()
        return code

    async def _monitor(self, child: Child, heartbeats: HeartbeatMonitor) -> None:
        """Kill ``child`` when its heartbeats stop."""
        reason = None
        while reason is None:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            reason = heartbeats.check(time.monotonic())
        child.hung = reason
        child.kill_group()

    async def _read(self, child: Child, pipe: int) -> None:
        """Read until every process that inherited the other end of the pipe is gone."""
        stream = asyncio.StreamReader(limit=_LINE_LIMIT)
        protocol = asyncio.StreamReaderProtocol(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb"))
        try:
            while True:
                try:
                    raw = await stream.readline()
                except ValueError:  # the reader dropped a line beyond the limit
                    continue
                if not raw:
                    return
                # Keep only the last state of a progress bar, which overwrites itself.
                line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
                if line:
                    child.tail.append(line)
                    self._on_line(child.spec.name, line)
        finally:
            transport.close()

    def _after_death(self, child: Child, code: int) -> float:
        """Seconds until ``child`` is restarted; raises ``ChildFailed`` if it is not restarted."""
        reason, exit_code = self._reason(child, code), code if code > 0 else ExitCode.FAILURE
        if not self._may_restart:
            raise ChildFailed(f"{child.spec.name}: {reason}", exit_code)
        pause = child.restarts.delay(time.monotonic())
        if pause is None and not child.spec.needed:
            return _LONGEST_PAUSE
        if pause is None:
            raise ChildFailed(f"{child.spec.name} died {child.restarts.limit}; the last time: {reason}", exit_code)
        return pause

    def _reason(self, child: Child, code: int) -> str:
        """Why ``child`` died, in one line: the signal and the reason in its output, or else its exit code."""
        if child.hung is not None:
            return f"it was killed: {child.hung}"
        words = death_reason(list(child.tail))
        if code >= 0:
            return words or f"it ended with code {code}"
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        hint = " (by hand, or out of memory)" if name == "SIGKILL" else ""
        return f"it was killed by {name}{hint}" + (f": {words}" if words else "")


class RestartPolicy:
    """Decides when a process that died is restarted, and whether it died too often. The caller gives the time."""

    def __init__(self, backoff: Backoff, deaths: int = 5, window: float = 60.0) -> None:
        """``deaths`` within ``window`` seconds are too many."""
        self._backoff, self._deaths, self._window = backoff, deaths, window
        self.limit = f"{deaths} times within {window:g} s"
        """In words."""
        self._recent: deque[float] = deque()

    def delay(self, now: float) -> float | None:
        """The process died at ``now``: seconds to wait before its restart, or None to give up."""
        while self._recent and now - self._recent[0] >= self._window:
            self._recent.popleft()
        if not self._recent:
            self._backoff.reset()
        self._recent.append(now)
        return None if len(self._recent) >= self._deaths else self._backoff.next()
