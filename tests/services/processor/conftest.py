"""Whole rings in one process, which log nothing; a service and a tokenization queue without engines."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from ringline.inference.v1 import inference_pb2_grpc
from structlog.testing import capture_logs

from tests.services.processor.queue_harness import QueueHarness
from tests.services.processor.ring_requests import Ring
from tests.services.processor.service_harness import ServiceHarness, served


@pytest.fixture
def world() -> Iterator[Ring]:
    """One of each service."""
    with capture_logs():
        yield Ring(["engine-0"], ["detokenizer-0"])


@pytest.fixture
def wide() -> Iterator[Ring]:
    """Two engines and two detokenizers."""
    with capture_logs():
        yield Ring(["engine-0", "engine-1"], ["detokenizer-0", "detokenizer-1"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that a ring sees: it passes when the test says so."""
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


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
async def channel(stub: inference_pb2_grpc.InferenceServiceStub, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to the harness that takes little of what it does not read."""
    narrow = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/service.sock", options=narrow) as channel:
        yield channel


@pytest.fixture
async def core() -> AsyncIterator[QueueHarness]:
    core = QueueHarness()
    await asyncio.sleep(0)
    yield core
    await core.run()
    core.queue.close()
