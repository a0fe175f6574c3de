"""Programs of the system's packages that tests use: where they are, or why a test cannot run."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRED = "TEST_PROGRAMS_REQUIRED"
"""Variable that .ci/run sets: what is missing there is a failure."""


def program(name: str, package: str) -> str:
    """The path of a program of a Debian package. Skips the test where it is not installed, but fails it in CI."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed: `apt-get install {package}`"
        pytest.fail(reason) if os.environ.get(REQUIRED) else pytest.skip(reason)
    return path
