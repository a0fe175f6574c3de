"""The ``ringline`` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.ring import ROOT


def ringline(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; ``env`` comes on top of this process's own environment."""
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=250,
        check=False,
    )
