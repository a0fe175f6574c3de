"""Counts suspicions in the services' logs, and finds lines that should never be logged."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_BAD = ("error", "critical")
_MOST_WORDS = 300
_RANK_FAILURE = re.compile(
    r"rank tp\d.*(was killed by SIGKILL|has not beaten|lost its connection|RankFailedError|exit code)"
)


@dataclass
class Findings:
    suspected: int = 0
    trusted_again: int = 0
    """False alarms, and hangs that ended."""
    errors: list[str] = field(default_factory=list)
    """Lines of level error or above, and tracebacks: no fault may cause them, but one of a rank."""
    rank_failures: Counter[str] = field(default_factory=Counter)
    """What engines of several ranks said when they ended."""


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
            if (failure := _RANK_FAILURE.search(str(entry.get("error", "")))) is not None:
                found.rank_failures[failure[1]] += 1
            elif entry.get("level") in _BAD:
                found.errors.append(f"{path.stem}: {line[:_MOST_WORDS]}")
    return found
