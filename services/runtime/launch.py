"""Runs a whole stack: its children under a supervisor, until a signal or until what was to be done with it is done."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from services.runtime.channels import wait_serving
from services.runtime.child_logs import ChildLogs, explain
from services.runtime.errors import ExitCode
from services.runtime.peer_credentials import PLAIN
from services.runtime.run_dir import StackState, run_directory
from services.runtime.stack import StackOptions, child_specs, service_addresses, state_of
from services.runtime.supervisor import Supervisor

log = structlog.get_logger()

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ReadyStack:
    """A stack whose services all serve."""

    address: str
    seconds: float
    """From the start of the first child."""
    state: StackState


async def run_stack(
    options: StackOptions,
    logs: ChildLogs,
    *,
    grace: float,
    when_ready: Callable[[ReadyStack], Awaitable[int | None]],
) -> int:
    """Run a stack and return the exit code.

    ``when_ready`` is awaited once every service serves; a code that it returns ends the stack, with None it goes on
    until a signal (and a second one ends it at once). ``grace``: seconds that requests have to end. Raises
    ``ChildFailed`` if the stack cannot go on.
    """
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        log.info("stopping" if len(received) == 1 else "stopping at once", signal=signal.Signals(number).name)
        supervisor.stop()

    front = options.front_credentials()
    with run_directory() as directory:
        started, start = time.time(), time.monotonic()
        supervisor = Supervisor(
            child_specs(options, directory),
            grace=grace,
            on_line=logs.line,
            on_change=lambda: directory.write(state_of(options, directory, supervisor, started)),
            explain=explain,
        )

        async def work() -> int | None:
            for address in service_addresses(options, directory).values():
                credentials, name = front if address == options.front_address else (PLAIN, None)
                await wait_serving(address, credentials=credentials, server_name=name)
            supervisor.established()
            state = state_of(options, directory, supervisor, started)
            return await when_ready(ReadyStack(options.front_address, time.monotonic() - start, state))

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        try:
            code = await _run_beside(supervisor, asyncio.create_task(work()))
            return 128 + received[1] if len(received) > 1 else code
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


async def _run_beside(supervisor: Supervisor, work: asyncio.Task[int | None]) -> int:
    """Run the supervisor until it ends, or until ``work`` returns a code (or raises)."""
    supervising = asyncio.create_task(supervisor.run())
    stopping = asyncio.create_task(supervisor.stopping.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not stopping.done():
            if work.exception() is None and work.result() is None:
                await stopping
            else:
                supervisor.stop()
        work.cancel()
        await supervising
        await asyncio.wait({work})
        return ExitCode.OK if work.cancelled() else work.result() or ExitCode.OK
    finally:
        for task in (work, stopping, supervising):
            task.cancel()
        await asyncio.gather(work, stopping, supervising, return_exceptions=True)
