"""Logs the load of an engine, now and then, while it computes."""

from __future__ import annotations

import structlog
from ringline.engine.v1 import engine_pb2

log = structlog.get_logger(__name__)


class LoadLog:
    """Logs at most every ``interval`` seconds; with 0, never."""

    def __init__(self, interval: float, now: float) -> None:
        """``now``, as in ``beat``: seconds of any clock."""
        self._interval = interval
        self._logged_at = now
        self._logged = engine_pb2.Load()

    def beat(self, now: float, load: engine_pb2.Load) -> None:
        """Log ``load`` if a line is due and steps were computed since the last one."""
        seconds, before = now - self._logged_at, self._logged
        if self._interval == 0 or seconds < self._interval:
            return
        self._logged_at, self._logged = now, load
        if load.steps == before.steps:
            return
        queries = load.prefix_queries - before.prefix_queries
        log.info(
            "load",
            tokens_per_second=round((load.generated_tokens - before.generated_tokens) / seconds, 1),
            running_choices=load.running_choices,
            waiting_requests=load.waiting_requests,
            kv_usage=round(load.kv_usage, 3),
            prefix_hit_rate=round((load.prefix_hits - before.prefix_hits) / queries, 3) if queries else None,
            preemptions=load.preemptions - before.preemptions,
            **_drafts(load, before),
        )


def _drafts(load: engine_pb2.Load, before: engine_pb2.Load) -> dict[str, float | None]:
    """The share of guessed tokens that came true; nothing for an engine that guesses none."""
    if not load.accepted_by_position:
        return {}
    guessed = load.draft_tokens - before.draft_tokens
    accepted = load.accepted_draft_tokens - before.accepted_draft_tokens
    return {"accepted_drafts": round(accepted / guessed, 3) if guessed else None}
