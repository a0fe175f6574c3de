"""These tests run kernels on CPU, under Triton's interpreter, which has to be asked for before Triton is imported: so
they are collected only in a process that ``test_triton.py`` beside this folder starts.

What torch does not initialize is NaN here, so that an output which no kernel has written shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _products_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies by numpy, whose library gives a row other bits in another place of a tile on some
    processors, as no GPU does.
    """

    def matmul(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.einsum("ij,jk->ik", a.astype(dtype), b.astype(dtype))

    monkeypatch.setattr(np, "matmul", matmul)
