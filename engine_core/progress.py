"""Progress reports of a starting engine: named stages with their seconds and bytes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Stage:
    """One stage of start-up. ``bytes``, ``detail`` and ``warning`` are filled in while it runs."""

    name: str
    """One of: load libraries, configuration, start ranks, compile kernels, device, join ranks, load weights, profile,
    allocate KV cache, warm up, serving.
    """
    bytes: int | None = None
    detail: str = ""
    """At the start, what is about to be done, if that takes long; at the end, the outcome."""
    warning: str = ""
    """A problem and its remedy, for a person."""
    unit: str = "bytes"
    """What its progress is counted in."""
    seconds: float | None = None
    """Duration of the stage; None while it runs."""


class StartupObserver(Protocol):
    """Shows the stages: a log, a progress bar, a health service."""

    def stage_started(self, stage: Stage) -> None: ...

    def stage_advanced(self, stage: Stage, done: int, total: int) -> None: ...

    def stage_finished(self, stage: Stage) -> None: ...


class WarningsOnly:
    """A ``StartupObserver`` that reports only warnings, as Python warnings."""

    def stage_started(self, stage: Stage) -> None:
        return

    def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
        return

    def stage_finished(self, stage: Stage) -> None:
        if stage.warning:
            warnings.warn(stage.warning, RuntimeWarning, stacklevel=2)


class StartupProgress:
    """Times the stages of start-up and reports them to every observer."""

    def __init__(self, *observers: StartupObserver) -> None:
        self._observers = observers

    @contextmanager
    def stage(self, name: str, detail: str = "", unit: str = "bytes") -> Iterator[Stage]:
        """Time the body as one stage; it is reported as finished only if the body does not raise."""
        stage = Stage(name, detail=detail, unit=unit)
        for observer in self._observers:
            observer.stage_started(stage)
        start = time.perf_counter()
        yield stage
        stage.seconds = time.perf_counter() - start
        for observer in self._observers:
            observer.stage_finished(stage)

    def advance(self, stage: Stage, done: int, total: int) -> None:
        """Report ``done`` of ``total`` of the stage's units."""
        for observer in self._observers:
            observer.stage_advanced(stage, done, total)
