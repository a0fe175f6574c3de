"""Backlogs for tests that are about something else: with room for whatever they ask."""

from __future__ import annotations

from services.processor.admission.backlog import Backlog, BacklogLimits


def roomy() -> Backlog:
    return Backlog(BacklogLimits(max_requests=1 << 20, max_seconds=1e9))
