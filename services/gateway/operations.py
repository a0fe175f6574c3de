"""Endpoints for operators: readiness, liveness, version, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response

from services.common.telemetry.metrics_endpoint import Page

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"

Operation = Callable[[], Awaitable[Response]]
"""Answers a GET."""


def health_pages(ready: Callable[[], bool]) -> Mapping[str, Page]:
    """Readiness and liveness for the metrics port."""
    return {
        "/health": Page(
            _TEXT,
            lambda: b"SERVING\n" if ready() else b"NOT_SERVING\n",
            status=lambda: HTTPStatus.OK if ready() else HTTPStatus.SERVICE_UNAVAILABLE,
        ),
        "/live": Page(_TEXT, lambda: b"SERVING\n"),
    }


def operations(ready: Callable[[], bool], registry: CollectorRegistry) -> Mapping[str, Operation]:
    """The operations by path. They ask no processor, and answer also when the gateway is full or drains."""
    rendering = asyncio.Lock()  # one thread renders, however many ask

    async def health() -> Response:
        is_ready = ready()
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(b"SERVING\n" if is_ready else b"NOT_SERVING\n", status, media_type=_TEXT)

    async def live() -> Response:
        return Response(b"SERVING\n", media_type=_TEXT)

    async def show_version() -> Response:
        return Response(msgspec.json.encode({"version": installed_version()}), media_type="application/json")

    async def metrics() -> Response:
        async with rendering:
            return Response(await asyncio.to_thread(generate_latest, registry), media_type=_METRICS)

    return {"/health": health, "/live": live, "/version": show_version, "/metrics": metrics}


def installed_version() -> str:
    """Ringline's version."""
    try:
        return version("ringline-server")
    except PackageNotFoundError:
        return "unknown"
