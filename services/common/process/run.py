"""Runs a service's process: title, logs, one-line fatal errors, forbidden imports, death with the parent process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import structlog
from setproctitle import setproctitle

from services.common.config.errors import ExitCode, FatalError
from services.common.config.options import given_options
from services.common.config.settings import ServiceSettings
from services.common.config.variable_names import PARENT_PID_VARIABLE
from services.common.telemetry.logs import configure_logs, report_fatal, warn_of_unknown_variables

ENGINE_ONLY_MODULES = ("torch", "transformers", "engine_core")
"""Top-level modules that a process of the CPU tiers must not load."""

_PR_SET_PDEATHSIG = 1
_POOL_PREFIX = "worker"
"""Prefix of the name of every thread of a ``DaemonThreadPool``."""
_POOL_TIMEOUT = 1.0
"""Seconds for work in such a pool to end when the process ends."""
_INCARNATION_RANDOM_BITS = 20


def begin_process(settings: ServiceSettings, *further: Any) -> None:
    """Prepare a service's process: its end, title and logs, which begin with the options that have been set.

    ``further``: dataclasses of more options.
    """
    die_with_parent()
    setproctitle(f"ringline {settings.service} {settings.name}")
    configure_logs(settings.telemetry, settings.service)
    structlog.get_logger(__name__).info("options", given=shlex.join(given_options(settings, *further)))
    warn_of_unknown_variables()


def run_service(
    main: Callable[[], Coroutine[Any, Any, int]], expected: Mapping[type[Exception], ExitCode] | None = None
) -> int:
    """Run ``main()`` in a new event loop and return the process's exit code.

    A ``FatalError``, or an exception of a type in ``expected``, ends it with its code and one readable line;
    any other exception with FAILURE and a traceback in the log. Does not wait for work in a ``DaemonThreadPool``, which
    ``asyncio.to_thread`` also uses, so that a process can be stopped while it loads a large model.
    """
    code = _run(main, expected or {})
    if _pools_are_busy(_POOL_TIMEOUT):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the interpreter would wait for the threads
    return code


def _run(main: Callable[[], Coroutine[Any, Any, int]], expected: Mapping[type[Exception], ExitCode]) -> int:
    async def with_daemon_threads() -> int:
        asyncio.get_running_loop().set_default_executor(_LoopThreadPool())
        return await main()

    # No uvloop: measured with grpc.aio, it gains up to 10 % on small unary calls, and nothing on streams, because
    # grpc.aio polls in its own thread and spends little time in the loop.
    try:
        return asyncio.run(with_daemon_threads())
    except FatalError as error:
        report_fatal(str(error))
        return error.code
    except Exception as error:
        for kind, code in expected.items():
            if isinstance(error, kind):
                report_fatal(str(error))
                return code
        structlog.get_logger().critical("unexpected error", error=_one_line(error), exc_info=True)
        return ExitCode.FAILURE


def _one_line(error: BaseException) -> str:
    """Type and text of an error; for an exception group, those of its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


class DaemonThreadPool(ThreadPoolExecutor):
    """A thread pool that the process does not wait for when it ends."""

    def __init__(self, max_workers: int | None = None, name: str = "") -> None:
        super().__init__(max_workers, f"{_POOL_PREFIX} {name}".rstrip())


class _LoopThreadPool(DaemonThreadPool):
    """The event loop's default pool; closing the loop does not wait for it either."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _pools_are_busy(seconds: float) -> bool:
    """Whether a thread of a ``DaemonThreadPool`` still runs after ``seconds``."""
    end = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name.startswith(_POOL_PREFIX):
            thread.join(max(end - time.monotonic(), 0.0))
            if thread.is_alive():
                return True
    return False


class _ForbiddenImports:
    """An import hook that refuses some top-level modules, as if they were not installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"{fullname} must not be loaded in this process", name=fullname)
        return None


def forbid_imports(names: Sequence[str] = ENGINE_ONLY_MODULES) -> None:
    """Make every later import of ``names`` fail in this process; raises ``AssertionError`` if one is loaded already.

    A library with optional support for one of them works without it, as if it were not installed.
    """
    loaded = sorted(name for name in names if name in sys.modules)
    if loaded:
        raise AssertionError(f"{', '.join(loaded)} must not be loaded in this process")
    sys.meta_path.insert(0, _ForbiddenImports(names))


def die_with_parent() -> None:
    """Have the kernel kill this process when its supervisor dies, however it dies.

    The supervisor sets ``RINGLINE_PARENT_PID``; without it nothing happens. Linux only (prctl(2), PR_SET_PDEATHSIG);
    elsewhere a supervised process outlives a supervisor that is killed with SIGKILL.
    """
    parent = os.environ.pop(PARENT_PID_VARIABLE, None)  # our own children have another parent
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # the supervisor died before the call above
        os._exit(ExitCode.FAILURE)


def new_incarnation() -> int:
    """A number greater than that of every earlier life of this process.

    Milliseconds since 1970 above 20 random bits, so that two lives that begin in one millisecond differ, too.
    """
    bits = _INCARNATION_RANDOM_BITS
    return (time.time_ns() // 1_000_000 << bits) | secrets.randbits(bits)
