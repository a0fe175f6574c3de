"""Keeping one link to a peer's address alive: dial, carry, and dial again after a pause, until cancelled."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import structlog
from ringline.types.v1 import link_pb2

from services.peers.channels import open_channel
from services.ring.identity import MAX_VERSION, MIN_VERSION, PeerId
from services.security.credentials import PLAINTEXT, PeerCredentials

log = structlog.get_logger(__name__)
MIN_BACKOFF, MAX_BACKOFF = 0.05, 1.0
"""Seconds between attempts."""
_REFUSALS = frozenset(
    (
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)
"""What a peer that is there answers a process that it will never have a link with."""
_NO_CONNECTION = "failed to connect to all addresses"
CA_CHECK_INTERVAL = 1.0
"""Seconds between looks at whether the authorities that are believed have changed."""
UNREACHABLE_LOG_DELAY = 10.0
"""Seconds without a link before it is worth a line: peers start in any order, and an engine takes a few."""


class Backoff:
    """The schedule of one reconnect or restart loop; it sleeps nowhere and has no clock.

    The n-th wait is drawn uniformly from [ceiling / 2, ceiling], with ceiling = min(first · factorⁿ, longest): the
    spread keeps peers that lost the same server from coming back in one instant ("Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015; half of it is kept so that no wait is near zero).
    """

    def __init__(
        self,
        first: float,
        longest: float,
        factor: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``first`` and ``longest`` in seconds; ``uniform(low, high)`` draws."""
        if not 0 < first <= longest or factor < 1:
            raise ValueError(f"no backoff from {first} to {longest} by {factor}")
        self._first, self._longest, self._factor, self._uniform = first, longest, factor, uniform
        self._ceiling = first
        self.successes = 0
        """Attempts that succeeded."""

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self._ceiling
        self._ceiling = min(ceiling * self._factor, self._longest)
        return self._uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the first again."""
        self.successes += 1
        self._ceiling = self._first


class PeerDedup:
    """Shared by the links of one process."""

    def __init__(self) -> None:
        self._addresses: dict[PeerId, str] = {}
        self._warned: dict[PeerId, set[str]] = {}

    @contextmanager
    def claim(self, peer: PeerId, address: str) -> Iterator[None]:
        """Have a peer for as long as a link to it is tried and stands.

        Raises ``LinkRefused`` if another address has it.
        """
        if self.has_another(peer, address):
            raise LinkRefused(f"it is {peer.name}, which {self._addresses[peer]} leads to already")
        self._addresses[peer] = address
        try:
            yield
        finally:
            del self._addresses[peer]
            self._warned.pop(peer, None)

    def has_another(self, peer: PeerId, address: str) -> bool:
        """Whether another address has a peer. It may be asked again and again; the warning comes once a claim."""
        used = self._addresses.get(peer, address)
        if used != address and address not in self._warned.setdefault(peer, set()):
            self._warned[peer].add(address)
            log.warning("two addresses of one peer", peer=peer.name, address=address, used=used)
        return used != address


class LinkRefused(Exception):
    """The peer is there, but no link to it can be had; the text says why."""


def parse_welcome(welcome: link_pb2.Welcome) -> PeerId:
    """Who answered a Hello; raises ``LinkRefused`` if the link would speak a version that was not offered."""
    version = welcome.version
    if not MIN_VERSION <= version <= MAX_VERSION:
        spoken = f"chose version {version}" if version else "names no version"
        problem = f"welcome: {welcome.name[:200]} {spoken} of the contract"
        raise LinkRefused(f"{problem}: expected one of {MIN_VERSION} to {MAX_VERSION}")
    return PeerId(welcome.name, welcome.incarnation)


async def maintain_link(
    address: str,
    carry: Callable[[grpc.aio.Channel, Backoff], Awaitable[None]],
    *,
    max_message_bytes: int,
    credentials: PeerCredentials = PLAINTEXT,
    server_name: str | None = None,
) -> None:
    """Run ``carry`` on one channel after the other; it resets the backoff when its link stands.

    ``server_name``: whose certificate is expected, if not that of the address's own host.

    It ends by returning (the peer closed the link) or raising. A link that ended is logged, with the reason; a peer
    that refuses, too, and one that cannot be reached when that has lasted a while. The same reason is logged once,
    however often it comes in a row.
    """
    backoff = Backoff(MIN_BACKOFF, MAX_BACKOFF)
    told, since = "", time.monotonic()
    while True:
        links, refused = backoff.successes, False
        try:
            believed = credentials.authorities
            async with (
                open_channel(address, max_message_bytes, credentials=credentials, server_name=server_name) as channel,
                _closed_when_distrusted(channel, address, credentials, believed),
            ):
                await carry(channel, backoff)
            reason = "the peer ended the link"
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            reason = "given up"
        except (grpc.aio.AioRpcError, LinkRefused, TimeoutError) as error:
            reason, refused = _reason(error), isinstance(error, LinkRefused) or _refuses(error)
        except Exception:
            log.exception("link failed", address=address)
            reason = "an unexpected error"
        if backoff.successes > links:
            told, since = "", time.monotonic()
            log.info("link ended", address=address, reason=reason)
        elif reason != told and (refused or time.monotonic() - since >= UNREACHABLE_LOG_DELAY):
            told = reason
            log.info("not linked", address=address, reason=reason)
        await asyncio.sleep(backoff.next())


@asynccontextmanager
async def _closed_when_distrusted(
    channel: grpc.aio.Channel, address: str, credentials: PeerCredentials, believed: bytes | None
) -> AsyncIterator[None]:
    """Close a channel when an authority is not believed any more that was when it was opened.

    gRPC does not tell the dialling end whose certificate it was shown; the next connection asks for it anew.
    """
    if believed is None or address.startswith("unix:"):
        yield
        return
    watching = asyncio.create_task(_watch_trust(channel, address, credentials, believed))
    try:
        yield
    finally:
        watching.cancel()


async def _watch_trust(channel: grpc.aio.Channel, address: str, credentials: PeerCredentials, believed: bytes) -> None:
    from services.security.certificates import removes_any  # cryptography takes a tenth of a second to load

    seen = believed
    while True:
        await asyncio.sleep(CA_CHECK_INTERVAL)
        now = credentials.authorities
        if now is not None and now != seen:
            seen = now
            if removes_any(now, believed):
                log.warning("link is made anew: an authority is not believed any more", address=address)
                await channel.close()
                return


def _cancelled_from_outside() -> bool:
    """Whether this task is to end, rather than a call of its own that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _refuses(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and error.code() in _REFUSALS


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        details = error.details() or error.code().name
        # Where nobody answers, gRPC says at length what it tried; the end of it is why.
        return details.rpartition(": ")[2] if details.startswith(_NO_CONNECTION) else details
    return str(error) or "it did not answer in time"
