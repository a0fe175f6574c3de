"""The first thing to see on a GPU: an engine on the bundled model says what the CPU's says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.engines import tokens

pytestmark = pytest.mark.gpu
BUNDLED = Path(__file__).parents[2] / "checkpoints" / "tiny"


def test_greedy_tokens_in_float32_are_those_of_a_cpu_engine() -> None:
    assert tokens(BUNDLED, dtype="float32") == tokens(BUNDLED, dtype="float32", device="cpu")
