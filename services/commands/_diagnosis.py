"""Why a call failed at a server that is there: another kind of port, another service of the ring, or TLS."""

from __future__ import annotations

import asyncio
import http.client
from typing import TYPE_CHECKING

import grpc.aio
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.commands._handshake import tls_trouble
from services.runtime.addresses import host_and_port, join_address
from services.runtime.channels import check_health, open_channel
from services.runtime.metrics_endpoint import server_name
from services.runtime.settings import METRICS_PORT_OFFSET

if TYPE_CHECKING:
    from services.commands._options import Connection

_SECONDS = 2.0
"""For each step; who is slower is not diagnosed."""
FULL_NAMES = {
    "processor": inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    "engine": engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name,
    "detokenizer": detokenizer_pb2.DESCRIPTOR.services_by_name["DetokenizerService"].full_name,
}
"""What each service of the ring is called in gRPC."""
_WITH_ARTICLE = {"processor": "a processor", "engine": "an engine", "detokenizer": "a detokenizer"}
_METRICS_OF = {server_name(service): service for service in FULL_NAMES}


def connection_trouble(address: str, connection: Connection) -> str | None:
    """Why no call gets through to ``address``, where somebody listens; None where that does not show."""
    return _http_trouble(address) or tls_trouble(address, connection)


def _http_trouble(address: str) -> str | None:
    """That it speaks plain HTTP, and whose metrics port it is."""
    if address.startswith("unix:"):
        return None
    host, port = host_and_port(address)
    web = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        web.request("GET", "/health")
        server = web.getresponse().getheader("Server", "")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        web.close()
    service = _METRICS_OF.get(server)
    if service is None:
        return "this port speaks HTTP/1, not gRPC"
    own = port - METRICS_PORT_OFFSET if port > METRICS_PORT_OFFSET else port + METRICS_PORT_OFFSET
    if service == "processor":
        return (
            "this is a processor's metrics port, for Prometheus and browsers; unless it was set otherwise, clients "
            f"connect to {join_address(host, own)}"
        )
    return f"this is {_WITH_ARTICLE[service]}'s metrics port, for Prometheus; clients connect to a processor"


async def service_trouble(channel: grpc.aio.Channel, wanted: str) -> str | None:
    """That another service of the ring than ``wanted`` is behind ``channel``; None where that does not show."""
    for service, name in FULL_NAMES.items():
        if await check_health(channel, name, _SECONDS) not in ("SERVICE_UNKNOWN", "UNREACHABLE"):
            return None if service == wanted else f"this is {_WITH_ARTICLE[service]}, not {_WITH_ARTICLE[wanted]}"
    return None


def call_trouble(address: str, wanted: str, connection: Connection) -> str | None:
    """The same of the server at ``address``, for callers without an event loop."""

    async def ask() -> str | None:
        credentials, name = connection.credentials(), connection.tls_server_name
        async with open_channel(address, credentials=credentials, server_name=name) as channel:
            return await service_trouble(channel, wanted)

    return asyncio.run(ask())
