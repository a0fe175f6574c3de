"""Maintains a link to one address: dials, runs the link, and redials with backoff, until cancelled."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import structlog
from ringline.types.v1 import link_pb2

from services.common.links.channels import Endpoint
from services.ring.identity import MAX_VERSION, MIN_VERSION, PeerId

log = structlog.get_logger(__name__)
MIN_BACKOFF, MAX_BACKOFF = 0.05, 1.0
"""Seconds between two attempts; see ``Backoff``."""
_REFUSALS = frozenset(
    (
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)
"""Statuses by which a live peer refuses this process; such a refusal is logged at once."""
_NO_CONNECTION = "failed to connect to all addresses"
CA_CHECK_INTERVAL = 1.0
"""Seconds between two checks of the file of trusted authorities."""
UNREACHABLE_LOG_DELAY = 10.0
"""Seconds until an unreachable peer is logged: peers start in any order, and an engine takes a few seconds."""


class Backoff:
    """Exponential backoff with jitter, for a reconnect or restart loop. The caller sleeps.

    The n-th wait is drawn uniformly from [ceiling / 2, ceiling], with ceiling = min(first · factorⁿ, longest): the
    spread keeps peers that lost the same server from coming back all at once ("Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015; half of the ceiling is kept so that no wait is near zero).
    """

    def __init__(
        self,
        first: float,
        longest: float,
        factor: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``first`` and ``longest`` in seconds; ``uniform(low, high)`` draws a wait."""
        if not 0 < first <= longest or factor < 1:
            raise ValueError(f"no backoff from {first} to {longest} by {factor}")
        self._first, self._longest, self._factor, self._uniform = first, longest, factor, uniform
        self._ceiling = first
        self.successes = 0
        """Number of successful attempts."""

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self._ceiling
        self._ceiling = min(ceiling * self._factor, self._longest)
        return self._uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the shortest one again."""
        self.successes += 1
        self._ceiling = self._first


class LinkRefused(Exception):
    """The peer answered, but a link to it is not possible; the text is the reason."""


def parse_welcome(welcome: link_pb2.Welcome) -> PeerId:
    """The peer that answered a Hello; raises ``LinkRefused`` if it chose a version that was not offered."""
    version = welcome.version
    if not MIN_VERSION <= version <= MAX_VERSION:
        spoken = f"chose version {version}" if version else "names no version"
        problem = f"welcome: {welcome.name[:200]} {spoken} of the contract"
        raise LinkRefused(f"{problem}: expected one of {MIN_VERSION} to {MAX_VERSION}")
    return PeerId(welcome.name, welcome.incarnation)


async def maintain_link(endpoint: Endpoint, run_link: Callable[[grpc.aio.Channel, Backoff], Awaitable[None]]) -> None:
    """Call ``run_link(channel, backoff)`` in a loop, each time with a new channel, until cancelled.

    ``run_link`` resets the backoff when its link is established; it returns when the peer closes the link, or raises.

    Logs each end of an established link with its reason, refusals, and a peer that cannot be reached for
    ``UNREACHABLE_LOG_DELAY``. A repeated reason is logged once.
    """
    backoff = Backoff(MIN_BACKOFF, MAX_BACKOFF)
    logged, since = "", time.monotonic()
    while True:
        links, refused = backoff.successes, False
        try:
            trusted = endpoint.credentials.authorities
            async with endpoint.open() as channel, _closed_when_distrusted(channel, endpoint, trusted):
                await run_link(channel, backoff)
            reason = "the peer ended the link"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # this task, not just a call that it awaits
                raise
            reason = "given up"
        except (grpc.aio.AioRpcError, LinkRefused, TimeoutError) as error:
            reason = _reason(error)
            refused = isinstance(error, LinkRefused) or (
                isinstance(error, grpc.aio.AioRpcError) and error.code() in _REFUSALS
            )
        except Exception:
            log.exception("link failed", address=endpoint.address)
            reason = "an unexpected error"
        if backoff.successes > links:
            logged, since = "", time.monotonic()
            log.info("link ended", address=endpoint.address, reason=reason)
        elif reason != logged and (refused or time.monotonic() - since >= UNREACHABLE_LOG_DELAY):
            logged = reason
            log.info("not linked", address=endpoint.address, reason=reason)
        await asyncio.sleep(backoff.next())


@asynccontextmanager
async def _closed_when_distrusted(
    channel: grpc.aio.Channel, endpoint: Endpoint, trusted: bytes | None
) -> AsyncIterator[None]:
    """Close a channel when an authority that was trusted at its opening is removed.

    gRPC does not show the dialling end the server's certificate; the next connection verifies it again.
    """
    if trusted is None or endpoint.address.startswith("unix:"):
        yield
        return
    watching = asyncio.create_task(_watch_authorities(channel, endpoint, trusted))
    try:
        yield
    finally:
        watching.cancel()


async def _watch_authorities(channel: grpc.aio.Channel, endpoint: Endpoint, trusted: bytes) -> None:
    from services.common.security.certificates import removes_any  # cryptography takes a tenth of a second to load

    seen = trusted
    while True:
        await asyncio.sleep(CA_CHECK_INTERVAL)
        now = endpoint.credentials.authorities
        if now is not None and now != seen:
            seen = now
            if removes_any(now, trusted):
                log.warning("redialling: an authority was removed from the trusted ones", address=endpoint.address)
                await channel.close()
                return


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        details = error.details() or error.code().name
        # If the server does not answer, gRPC lists its attempts; the reason is at the end.
        return details.rpartition(": ")[2] if details.startswith(_NO_CONNECTION) else details
    return str(error) or "it did not answer in time"
