"""What the services' logs say of a run: who was suspected, and what should never be logged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_BAD = ("error", "critical")
_MOST_WORDS = 300


@dataclass
class Findings:
    """Of all services, in all of their lives."""

    suspected: int = 0
    trusted_again: int = 0
    """Of those who were suspected: false alarms, or hangs that ended."""
    errors: list[str] = field(default_factory=list)
    """Lines that no fault explains."""


def read_logs(paths: Iterable[Path]) -> Findings:
    """Every line of every log."""
    found = Findings()
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # half a line of a process that was killed, or one that nothing made into a log's
                entry = {"level": "error"} if line.startswith("Traceback") else {}
            event = entry.get("event")
            found.suspected += event == "peer suspected"
            found.trusted_again += event == "peer trusted again"
            if entry.get("level") in _BAD:
                found.errors.append(f"{path.stem}: {line[:_MOST_WORDS]}")
    return found
