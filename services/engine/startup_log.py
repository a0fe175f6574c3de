"""Logs the stages of an engine's start-up. Does not import torch: the first stages come before torch is loaded."""

from __future__ import annotations

import time

import structlog

from engine_core.progress import Stage

log = structlog.get_logger(__name__)

_ADVANCE_INTERVAL = 0.5
"""Seconds between two lines about one stage."""


class StageLog:
    """A ``StartupObserver`` that logs."""

    def __init__(self) -> None:
        self._logged_at = 0.0

    def stage_started(self, stage: Stage) -> None:
        self._logged_at = time.monotonic()
        log.info("stage started", name=stage.name, **({"detail": stage.detail} if stage.detail else {}))

    def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _ADVANCE_INTERVAL or done == total:
            self._logged_at = now
            log.info("stage advanced", name=stage.name, **{f"done_{stage.unit}": done, f"total_{stage.unit}": total})

    def stage_finished(self, stage: Stage) -> None:
        seconds = None if stage.seconds is None else round(stage.seconds, 3)
        log.info("stage", name=stage.name, seconds=seconds, bytes=stage.bytes, detail=stage.detail)
        if stage.warning:
            log.warning("stage warning", name=stage.name, reason=stage.warning)
