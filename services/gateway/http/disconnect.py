"""Cancels a request whose client goes away, and with it the work of processors and engines."""

from __future__ import annotations

from starlette.types import Receive

from services.gateway.http.load import Request


class Disconnected(Exception):
    """The client went away before its request was complete."""


async def cancel_when_gone(request: Request, receive: Receive) -> None:
    """Cancel ``request`` once its client goes away. Call after its body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.task.cancel()
