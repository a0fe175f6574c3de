"""The protocol between an executor and the processes of its ranks: two connections for each.

*calls*: requests and replies, in order.

    executor → rank                      rank → executor
    RankStart                            RankReport
    Call                                 Progress, any number; then Returned or Raised
    Step                                 StepReply, from the rank that samples
    Grammar, to the rank that samples    (no reply; may come between any others)
    LoadAdapter, UnloadAdapter           (may come between any others; *signs* say what came of the first)
    None: end

*signs*: to the executor alone: heartbeats, ``Raised`` for a step that failed, and ``AdapterLoaded``.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank
from engine_core.errors import ExecutorError
from engine_core.step import StepPlan, StepResult

BEAT = b""
BEAT_INTERVAL = 0.1
"""Seconds between two heartbeats."""

Sampled = npt.NDArray[np.int64]
"""[R]: the tokens of a step's rows that sample, drafts included."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """Tells a process which rank to be."""

    config: EngineConfig
    rank: Rank
    title: str
    """Process title, shown by ``ps``."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """Sent by a rank's process once it has opened the checkpoint; it has taken no memory yet."""

    host: str
    pid: int
    identity: dict[str, str] = field(default_factory=dict)
    """What must be equal on all ranks, by name."""


class Call(NamedTuple):
    """Call a method of the ``Worker``."""

    method: str
    arguments: tuple[Any, ...]
    reports_progress: bool
    """Whether the method's last argument is a progress callback."""


class Progress(NamedTuple):
    """Progress of a call."""

    done: int
    total: int


class Returned(NamedTuple):
    """The result of a call."""

    value: Any


class Raised(NamedTuple):
    """The exception of a call, or of a step."""

    error: Exception
    step_id: int | None = None


class Step(NamedTuple):
    """Compute a step after those before it."""

    plan: StepPlan
    results: list[tuple[int, Sampled]]
    """(step id, tokens) of steps whose replies have arrived since the last message; to commit before the plan."""


class Grammar(NamedTuple):
    """Compile a grammar, which a plan will bring, beside the steps."""

    text: str


class LoadAdapter(NamedTuple):
    """Load an adapter beside the steps."""

    adapter_id: int
    path: str
    digest: str


class UnloadAdapter(NamedTuple):
    """Forget an adapter."""

    adapter_id: int


class AdapterLoaded(NamedTuple):
    """What came of ``LoadAdapter``."""

    adapter_id: int
    error: Exception | None


class StepReply(NamedTuple):
    """From the rank that samples."""

    result: StepResult
    sampled: Sampled


@dataclass(frozen=True, slots=True)
class RankConnections:
    """One end of both connections."""

    calls: Connection[Any, Any]
    signs: Connection[Any, Any]

    def shut(self) -> None:
        """Wake readers and writers at both ends; the descriptors stay open until ``close``."""
        for connection in (self.calls, self.signs):
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def limit_sending(self, seconds: float) -> None:
        """Fail a send that the other side has not read after ``seconds``."""
        whole = int(seconds)
        with socket.socket(fileno=os.dup(self.calls.fileno())) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, 0))

    def close(self) -> None:
        """Idempotent."""
        self.calls.close()
        self.signs.close()


def portable(error: Exception) -> Exception:
    """``error`` if it survives pickling, else an ``ExecutorError`` with its text."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) else ExecutorError(f"{type(error).__name__}: {error}")
