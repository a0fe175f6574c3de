"""Whether any processor takes requests, by gRPC's health service over channels like those of requests: whatever blocks
requests also ends readiness.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from services.gateway.processors import Processors

_RETRY_SECONDS = 0.2
_WATCH = "/grpc.health.v1.Health/Watch"


class Readiness:
    """Watches all processors during ``run``."""

    def __init__(self, processors: Processors) -> None:
        self._processors = processors
        self._serving: set[str] = set()
        self._found: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether any processor has a model to serve."""
        return bool(self._serving)

    @property
    def found(self) -> bool:
        """Whether any processor answers, even one that has no model yet."""
        return bool(self._found)

    async def run(self) -> None:
        """Watch all processors forever."""
        async with asyncio.TaskGroup() as tasks:
            for address in self._processors.addresses:
                tasks.create_task(self._watch(address))

    async def _watch(self, address: str) -> None:
        """Each attempt opens a new channel, as one that failed for a while would back off before reconnecting."""
        while True:
            async with self._processors.channel(address) as channel:
                watch = channel.unary_stream(
                    _WATCH,
                    request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                    response_deserializer=health_pb2.HealthCheckResponse.FromString,
                )
                with suppress(grpc.RpcError):
                    metadata = tuple(self._processors.metadata.items())
                    async for health in watch(health_pb2.HealthCheckRequest(), metadata=metadata):
                        self._found.add(address)
                        serving = health.status == health_pb2.HealthCheckResponse.SERVING
                        (self._serving.add if serving else self._serving.discard)(address)
            self._serving.discard(address)
            self._found.discard(address)
            await asyncio.sleep(_RETRY_SECONDS)
