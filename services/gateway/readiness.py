"""Whether a processor takes requests: each of them says so, by gRPC's health service, over channels such as requests
take: what keeps these from a processor must not leave the gateway ready.
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
    """Watches processors while ``run`` runs."""

    def __init__(self, processors: Processors) -> None:
        self._processors = processors
        self._serving: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether any processor has a model to serve."""
        return bool(self._serving)

    async def run(self) -> None:
        """Watch all processors, and forever."""
        async with asyncio.TaskGroup() as tasks:
            for address in self._processors.addresses:
                tasks.create_task(self._watch(address))

    async def _watch(self, address: str) -> None:
        """Each attempt opens a new channel: one that has failed for a while would wait before it connects again."""
        while True:
            async with self._processors.channel(address) as channel:
                watch = channel.unary_stream(
                    _WATCH,
                    request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                    response_deserializer=health_pb2.HealthCheckResponse.FromString,
                )
                with suppress(grpc.RpcError):
                    async for health in watch(health_pb2.HealthCheckRequest()):
                        serving = health.status == health_pb2.HealthCheckResponse.SERVING
                        (self._serving.add if serving else self._serving.discard)(address)
            self._serving.discard(address)
            await asyncio.sleep(_RETRY_SECONDS)
