import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def private_runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In which no stack runs, and whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        yield Path(path)
