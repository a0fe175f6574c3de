"""A line a second, whatever comes, and none that is not counted."""

from __future__ import annotations

import pytest

from services.common.telemetry import logs as rate_limited_log
from services.common.telemetry.logs import RateLimitedLog


class Lines:
    """Where lines of a log are kept."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))


def test_what_comes_too_often_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, now = Lines(), 0.5
    monkeypatch.setattr(rate_limited_log.time, "monotonic", lambda: now)
    limited = RateLimitedLog(lines, "denied")
    for now in (0.5, 0.6, 1.4, 1.6, 1.7, 9.0, 10.0):
        limited.write(peer=now)
    assert lines.told == [
        ("denied", {"peer": 0.5, "not_logged_before": 0}),
        ("denied", {"peer": 1.6, "not_logged_before": 2}),
        ("denied", {"peer": 9.0, "not_logged_before": 1}),
        ("denied", {"peer": 10.0, "not_logged_before": 0}),
    ]
