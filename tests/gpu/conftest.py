"""Tests on an NVIDIA GPU; `make test-gpu` runs them with nothing of the services installed.

They take whatever torch (2.11 or newer) and triton they find. What torch does not initialize is left as it is here: a
graph's memory must not be written by anybody else.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

if "tests" not in sys.modules:
    # Some distributions install a package of this name, which would be found before a folder.
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(Path(__file__).parents[1])]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
