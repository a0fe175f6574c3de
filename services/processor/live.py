"""A request that this processor owns: the client's side of it, and its side on the ring."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.processor.admission import Admission
from services.processor.client import ClientStream
from services.ring.request import RingRequest
from services.ring.routes import Route


@dataclass(slots=True, eq=False)
class ClientRequest:
    """A request from the frame that asked for it to its last terminal. Times are on the monotonic clock, seconds."""

    ring_id: str
    client_id: str
    ordinal: int
    """Which frame of its stream asked for it, from 1."""
    client: ClientStream
    arrived: float
    deadline: float | None
    timer: asyncio.TimerHandle | None = None
    """Goes off at the deadline."""
    live: LiveRequest | None = None
    """None until its prompt is tokenized and everything resolved."""
    ended: bool = False
    """Whether every terminal is in the outbox."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request on the ring."""

    call: ClientRequest
    admission: Admission
    ring: RingRequest
    route: Route | None = None
    stranded_at: float | None = None
    """Since when it has had no route; None while it has one."""
    reason: str = ""
    """Why it lost its last route."""
    crashes: int = 0
    """Engines that died while they had it."""
    fingerprint: str | None = None
    """Numerics of the engine that computes it."""
    prompt_scored: bool = False
    """Whether the client has the prompt's log probabilities."""
    last_delta_at: float | None = None
