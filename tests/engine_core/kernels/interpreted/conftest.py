"""These tests run kernels on CPU, under Triton's interpreter, which has to be asked for before Triton is imported: so
they are collected only in a process that ``test_triton.py`` beside this folder starts.

What torch does not initialize is NaN here, so that an output which no kernel has written shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _mended_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engine_core.kernels.interpreted_device import mend_interpreter

    mend_interpreter(monkeypatch)
