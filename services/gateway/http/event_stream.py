"""Server-sent events, with pings during silence so that no proxy closes the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING = b": ping\n\n"
PING_INTERVAL = 15.0
"""Seconds."""


class EventStream(Response):
    """A response of events. Begin it only once the first is certain: the status is 200 from then on."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], *, ping: bytes = PING, headers: Mapping[str, str] | None = None
    ) -> None:
        """``events``: each with its closing blank line; closed when the client is gone."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._ping = ping
        self._quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        pinging = asyncio.create_task(self._send_pings(send))
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._quiet = False
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            pinging.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pings(self, send: Send) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL)
            if self._quiet:
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})
            self._quiet = True
