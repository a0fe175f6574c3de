"""``ringline supervise``: the first process of a container. It runs one service, and ends when that ends or hangs."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

import click

from services.common.config.errors import ExitCode
from services.common.process.heartbeat import HEARTBEAT_INTERVAL, HEARTBEAT_LIMITS, HeartbeatLimits, HeartbeatMonitor

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, options_metavar="")
@click.argument("service", type=click.Choice(["engine", "processor", "detokenizer", "gateway"]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def supervise(service: str, options: tuple[str, ...]) -> int:
    """Run `ringline SERVICE [OPTIONS]` as a child process; end with its exit code when it ends.

    A child that hangs is killed. The container runtime restarts it. Signals are passed on to the child.
    """
    # -P: do not import from a folder named "services" in the working directory.
    return run_child((sys.executable, "-P", "-m", "services.cli", service, *options), HEARTBEAT_LIMITS)


def run_child(argv: tuple[str, ...], limits: HeartbeatLimits) -> int:
    """Run a program until it ends or hangs; returns the exit code for this process."""
    heartbeats = HeartbeatMonitor(limits)
    os.set_inheritable(heartbeats.writing, True)
    # A group of its own: a terminal's signals reach only this process, which passes them on once.
    child = os.posix_spawn(argv[0], argv, {**os.environ, **heartbeats.environment()}, setpgroup=0)
    os.close(heartbeats.writing)
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: _kill(child, number))
    ended = os.pidfd_open(child)
    try:
        while (status := _status_of(child)) is None:
            if (reason := heartbeats.check(time.monotonic())) is not None:
                print(f"killing the service: {reason}", file=sys.stderr, flush=True)
                os.killpg(child, signal.SIGKILL)
            select.select([ended], [], [], HEARTBEAT_INTERVAL)
    finally:
        os.close(ended)
        heartbeats.close()
    return status if status >= 0 else 128 - status


def _status_of(child: int) -> int | None:
    """The child's exit code, None while it runs. The first process of a container reaps orphans, too."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)
            if pid == 0:
                return None
    return ExitCode.FAILURE


def _kill(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)
