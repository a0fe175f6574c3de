"""Stubs on channels of each test's own event loop, closed with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from ringline.engine.v1 import engine_pb2_grpc
from ringline.inference.v1 import inference_pb2_grpc

from services.common.links.channels import Endpoint
from tests.ring import Ring


@pytest.fixture
async def front(ring: Ring) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    async with Endpoint(ring.address).open() as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


@pytest.fixture
async def engine(ring: Ring) -> AsyncIterator[engine_pb2_grpc.EngineServiceAsyncStub]:
    async with Endpoint(ring.engine_address).open() as channel:
        yield engine_pb2_grpc.EngineServiceStub(channel)
