"""ruff, mypy --strict and the import contracts (all in pyproject.toml) have nothing to say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import output_of


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
    output_of(Path(sys.executable).parent / tool, *arguments, timeout=400)
