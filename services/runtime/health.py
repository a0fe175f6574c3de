"""Health of a server, open to strangers: what they ask about is bounded, because it is kept while they watch."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

MAX_NAME_LENGTH = 256
"""Characters of a service's name."""


class BoundedHealth(health.aio.HealthServicer):
    """gRPC's own, for names that a service may have."""

    async def Check(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """As ``HealthServicer``."""
        await _check_name(request, context)
        return await super().Check(request, context)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """As ``HealthServicer``."""
        await _check_name(request, context)
        return await super().Watch(request, context)


async def _check_name(request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    if len(request.service) > MAX_NAME_LENGTH:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"service: expected a name of at most {MAX_NAME_LENGTH} characters"
        )
