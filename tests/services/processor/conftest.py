"""Rings of one process, which log nothing; and a front door without a ring."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ringline.inference.v1 import inference_pb2_grpc
from structlog.testing import capture_logs

from tests.services.processor.front_doors import FrontDoor, served
from tests.services.processor.tokenization_queues import LARGE, Office
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


@pytest.fixture
async def door() -> AsyncIterator[FrontDoor]:
    door = FrontDoor()
    yield door
    door.go.set()
    door.desk.close()


@pytest.fixture
async def front(door: FrontDoor, tmp_path: Path) -> AsyncIterator[inference_pb2_grpc.InferenceServiceStub]:
    async with served(door, tmp_path) as stub:
        yield stub


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office(max_waiting_bytes=4 * LARGE + 2000)
    await asyncio.sleep(0)
    yield office
    await office.go()
    office.desk.close()
