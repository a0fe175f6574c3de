"""Signs of life of a child process, as those who started it listen to them (``services.runtime.heartbeat`` gives them).

A child beats into a pipe whose number is in its environment. One byte each time says what it is doing, since a process
that starts or ends may block for longer than one that serves. This module imports nothing large: it is in the first
process of every container.
"""

from __future__ import annotations

import enum
import os
from contextlib import suppress
from dataclasses import dataclass

from services.runtime.watchdog import Stillness

PARENT_VARIABLE = "RINGLINE_PARENT_PID"
"""Set by a supervisor to its own pid in the environment of its children."""
PIPE_VARIABLE = "RINGLINE_BEAT_PIPE"
"""Set likewise to the number of the pipe in which it expects a child's signs of life."""
INTERVAL = 0.5
"""Seconds between beats, and between two looks at them."""


class Phase(enum.Enum):
    """What a process is doing."""

    STARTING = b"s"
    RUNNING = b"r"
    ENDING = b"e"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds without a beat after which a process is believed to hang, by what it was doing."""

    starting: float = 120.0
    """From its birth: libraries are imported before the first beat, and large files are read."""
    running: float = 8.0
    ending: float = 30.0

    def of(self, phase: Phase) -> float:
        """The limit of a phase."""
        return {Phase.STARTING: self.starting, Phase.RUNNING: self.running, Phase.ENDING: self.ending}[phase]


LIMITS = Limits()


class Pulse:
    """The beats of one life of a child, at the end of those who started it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reading, self.writing = os.pipe()
        """``writing`` is for the child, and to be closed here once it is born."""
        for end in (self._reading, self.writing):
            os.set_blocking(end, False)  # a child must not wait for a parent that does not look
        self._stillness = Stillness(INTERVAL)
        self._beats = 0
        self._phase = Phase.STARTING

    def environment(self) -> dict[str, str]:
        """What the child must find in its environment beside the pipe's open end."""
        return {PARENT_VARIABLE: str(os.getpid()), PIPE_VARIABLE: str(self.writing)}

    def look(self, now: float) -> str | None:
        """Why the child is believed to hang, if it is. Call every ``INTERVAL``."""
        with suppress(BlockingIOError):
            while beats := os.read(self._reading, 4096):
                self._beats += len(beats)
                self._phase = Phase(beats[-1:])
        silence = self._stillness.look(now, self._beats)
        return f"it gave no sign of life for {silence:.1f} s" if silence > self._limits.of(self._phase) else None

    def close(self) -> None:
        """The child is gone."""
        os.close(self._reading)
