"""Programs that tests run: what they write, and where those of the system's packages are, or why a test cannot run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.ring import ROOT

REQUIRED = "TEST_PROGRAMS_REQUIRED"
"""Variable that .ci/run sets: what is missing there is a failure."""


def program(name: str, package: str) -> str:
    """The path of a program of a Debian package. Skips the test where it is not installed, but fails it in CI."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed: `apt-get install {package}`"
        pytest.fail(reason) if os.environ.get(REQUIRED) else pytest.skip(reason)
    return path


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 250, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; ``env`` is added to this process's."""
    given = {"capture_output": True, "text": True, "check": False, "timeout": timeout, **options}
    return subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, **given)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own; ``options`` as of ``run``."""
    return run(sys.executable, "-c", code, **options)


def ringline(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the ``ringline`` command; ``options`` as of ``run``."""
    return run(sys.executable, "-m", "services.cli", *arguments, **options)


def output_of(*command: str | Path, **options: Any) -> str:
    """What a program writes that must succeed; ``options`` as of ``run``."""
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
