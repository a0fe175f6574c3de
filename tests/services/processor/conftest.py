"""Whole rings in one process, which log nothing; a service and a tokenization queue without engines."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ringline.inference.v1 import inference_pb2_grpc
from structlog.testing import capture_logs

from tests.services.processor.queue_harness import LARGE, QueueHarness
from tests.services.processor.service_harness import ServiceHarness, served
from tests.services.ring.ring_simulation import RingSimulation


@pytest.fixture
def world() -> Iterator[RingSimulation]:
    """One of each service."""
    with capture_logs():
        yield RingSimulation(["engine-0"], ["detokenizer-0"])


@pytest.fixture
def wide() -> Iterator[RingSimulation]:
    """Two engines and two detokenizers."""
    with capture_logs():
        yield RingSimulation(["engine-0", "engine-1"], ["detokenizer-0", "detokenizer-1"])


@pytest.fixture
async def harness() -> AsyncIterator[ServiceHarness]:
    harness = ServiceHarness()
    yield harness
    harness.go.set()
    harness.queue.close()


@pytest.fixture
async def stub(harness: ServiceHarness, tmp_path: Path) -> AsyncIterator[inference_pb2_grpc.InferenceServiceStub]:
    async with served(harness, tmp_path) as stub:
        yield stub


@pytest.fixture
async def core() -> AsyncIterator[QueueHarness]:
    core = QueueHarness(max_waiting_bytes=4 * LARGE + 2000)
    await asyncio.sleep(0)
    yield core
    await core.run()
    core.queue.close()
