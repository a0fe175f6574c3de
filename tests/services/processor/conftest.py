"""Rings of one process, which log nothing."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from tests.services.ring.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """One of each service."""
    with capture_logs():
        yield World(["engine-0"], ["detokenizer-0"])


@pytest.fixture
def wide() -> Iterator[World]:
    """Two engines and two detokenizers."""
    with capture_logs():
        yield World(["engine-0", "engine-1"], ["detokenizer-0", "detokenizer-1"])
