"""The hygiene of one process: readable fatal errors, no forbidden imports, no life after its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
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

from services.config.environment import PARENT_VARIABLE
from services.config.errors import ExitCode, FatalError
from services.telemetry.logs import report_fatal

HEAVY_MODULES = ("torch", "transformers", "engine_core")
"""What a process of the CPU tiers must never load."""

_PR_SET_PDEATHSIG = 1

_WORKERS = "worker"
"""Prefix of the names of the threads of ``Workers``."""
_WORK_TIMEOUT = 1.0
"""Seconds that work in such a thread has to end when the process does."""


def run_service(
    main: Callable[[], Coroutine[Any, Any, int]], expected: Mapping[type[Exception], ExitCode] | None = None
) -> int:
    """Run ``main()`` in a new event loop and return the process's exit code.

    A ``FatalError``, or an exception of a type in ``expected``, ends it with its code and one readable line;
    anything else with FAILURE and a traceback in the log. Work that ``main`` left behind in ``Workers``, such as those
    of ``asyncio.to_thread``, is not waited for: a process that was told to end while it loads a large model ends.
    """
    code = _run(main, expected or {})
    if _working_threads(_WORK_TIMEOUT):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the interpreter would wait for them
    return code


def _run(main: Callable[[], Coroutine[Any, Any, int]], expected: Mapping[type[Exception], ExitCode]) -> int:
    async def with_workers() -> int:
        asyncio.get_running_loop().set_default_executor(_LoopWorkers())
        return await main()

    # uvloop was measured with grpc.aio: within noise for round trips on a stream and for pushed frames, up to 10 % on
    # small unary calls. grpc.aio polls in a thread of its own, so the loop is not where its time goes.
    try:
        return asyncio.run(with_workers())
    except FatalError as error:
        report_fatal(str(error))
        return error.code
    except Exception as error:
        for kind, code in expected.items():
            if isinstance(error, kind):
                report_fatal(str(error))
                return code
        structlog.get_logger().critical("unexpected error", error=_named(error), exc_info=True)
        return ExitCode.FAILURE


def _named(error: BaseException) -> str:
    """Kind and words of an error in one line; of a group, those of its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


class Workers(ThreadPoolExecutor):
    """Threads whose work the end of the process does not wait for."""

    def __init__(self, max_workers: int | None = None, name: str = "") -> None:
        super().__init__(max_workers, f"{_WORKERS} {name}".rstrip())


class _LoopWorkers(Workers):
    """The threads of ``asyncio.to_thread``; the end of the loop does not wait for them either."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _working_threads(seconds: float) -> bool:
    """Whether a thread of ``Workers`` is still at work after ``seconds``."""
    end = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name.startswith(_WORKERS):
            thread.join(max(end - time.monotonic(), 0.0))
            if thread.is_alive():
                return True
    return False


class _Forbidding:
    """An import hook that refuses some top-level modules, as if they were not installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"{fullname} must not be loaded in this process", name=fullname)
        return None


def forbid_modules(names: Sequence[str] = HEAVY_MODULES) -> None:
    """Make every later import of ``names`` fail in this process; raise ``AssertionError`` if one is loaded already.

    A library that merely offers support for them goes on without, as where they are not installed.
    """
    loaded = sorted(name for name in names if name in sys.modules)
    if loaded:
        raise AssertionError(f"{', '.join(loaded)} must not be loaded in this process")
    sys.meta_path.insert(0, _Forbidding(names))


def die_with_parent() -> None:
    """Bind this process's life to its supervisor's: if that dies, in whatever way, the kernel kills this one.

    The supervisor says who it is in ``RINGLINE_PARENT_PID``; without that nothing happens. Linux only (prctl(2),
    PR_SET_PDEATHSIG); elsewhere a supervised process outlives a supervisor that is killed outright.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)  # our own children have another parent
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the kernel was told
        os._exit(ExitCode.FAILURE)
