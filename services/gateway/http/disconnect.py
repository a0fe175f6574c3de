"""A client that goes away: its request is cancelled, and with it all that processors and engines compute for it."""

from __future__ import annotations

from starlette.types import Receive

from services.gateway.http.load import Request


class Disconnected(Exception):
    """The client went away before its request was complete."""


async def cancel_when_gone(request: Request, receive: Receive) -> None:
    """Cancel ``request`` once its client has gone away. Its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.task.cancel()
