"""ruff, mypy --strict and the import contracts (all in pyproject.toml) have nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.long
@pytest.mark.timeout(400)  # mypy without a cache reads torch and transformers
@pytest.mark.parametrize(
    "command",
    [
        pytest.param("ruff check", id="ruff-check"),
        pytest.param("ruff format --check", id="ruff-format"),
        pytest.param("lint-imports --no-logo", id="import-contracts"),
        pytest.param("mypy", id="types"),
    ],
)
def test_is_clean(command: str) -> None:
    tool, *arguments = command.split()
    result = subprocess.run([BIN / tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
