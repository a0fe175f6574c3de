"""What passes between an executor and the processes of its ranks: two connections for each, and the messages on them.

*Calls* are requests and replies, in order. A rank is first sent its ``RankStart``, and replies with a ``RankReport``;
then come ``Call`` (answered by ``Progress`` any number of times, then by ``Returned`` or ``Raised``) and ``Step``
(answered by a ``StepReply`` of the rank that samples); ``None`` asks it to end. A ``Grammar``, which the rank that
samples is sent, may come between any of them and is not answered.
*Signs* go to the executor alone: beats, and ``Raised`` for a step that failed.
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
"""Seconds between two beats."""

Sampled = npt.NDArray[np.int64]
"""[R]: the tokens of the rows of a step that sample, drafts included."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """What a rank's process is to become."""

    config: EngineConfig
    rank: Rank
    title: str
    """Of the process, as ``ps`` shows it."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank's process is, once it has opened the checkpoint; it has taken no memory yet."""

    host: str
    pid: int
    identity: dict[str, str] = field(default_factory=dict)
    """What must be equal on all ranks, by name."""


class Call(NamedTuple):
    """Call a method of the ``Worker``."""

    method: str
    arguments: tuple[Any, ...]
    reports_progress: bool
    """Whether its last argument is a function that takes progress."""


class Progress(NamedTuple):
    """Of a call."""

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
    """(step id, tokens) of steps whose replies have arrived since the last message; they come before the plan."""


class Grammar(NamedTuple):
    """Compile it beside the steps: a plan is going to bring it."""

    text: str


class StepReply(NamedTuple):
    """From the rank that samples."""

    result: StepResult
    sampled: Sampled


@dataclass(frozen=True, slots=True)
class RankConnections:
    """One end of both."""

    calls: Connection[Any, Any]
    signs: Connection[Any, Any]

    def shut(self) -> None:
        """Wake whoever reads or writes, here and there; the descriptors stay open until ``close``."""
        for connection in (self.calls, self.signs):
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def limit_sending(self, seconds: float) -> None:
        """Let a call that the other side does not read fail after that long."""
        whole = int(seconds)
        with socket.socket(fileno=os.dup(self.calls.fileno())) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, 0))

    def close(self) -> None:
        """Idempotent."""
        self.calls.close()
        self.signs.close()


def portable(error: Exception) -> Exception:
    """``error`` if it survives pickling, else one that says the same."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) else ExecutorError(f"{type(error).__name__}: {error}")
