"""Counts suspicions in the services' logs, and finds lines that should never be logged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_BAD = ("error", "critical")
_MOST_WORDS = 300


@dataclass
class Findings:
    suspected: int = 0
    trusted_again: int = 0
    """False alarms, and hangs that ended."""
    errors: list[str] = field(default_factory=list)
    """Lines of level error or above, and tracebacks: no fault may cause them."""


def read_logs(paths: Iterable[Path]) -> Findings:
    found = Findings()
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # cut short by a kill, or not written by the logger
                entry = {"level": "error"} if line.startswith("Traceback") else {}
            event = entry.get("event")
            found.suspected += event == "peer suspected"
            found.trusted_again += event == "peer trusted again"
            if entry.get("level") in _BAD:
                found.errors.append(f"{path.stem}: {line[:_MOST_WORDS]}")
    return found
