"""Keeping one link to a peer's address alive: dial, carry, and dial again after a pause, until cancelled.

Whatever ends a link ends it alone: a peer that is not there yet, a network that is cut, frames that make no sense.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import structlog

from services.runtime.backoff import Backoff
from services.runtime.channels import open_channel

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts."""


class LinkRefused(Exception):
    """The peer is there, but no link to it can be had; the text says why."""


async def keep_linked(
    address: str, carry: Callable[[grpc.aio.Channel, Backoff], Awaitable[None]], *, max_message_bytes: int
) -> None:
    """Run ``carry`` on one channel after the other; it resets the backoff when its link stands.

    It ends by returning (the peer closed the link) or raising. The same reason is logged once, however often it
    comes in a row.
    """
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    told = ""
    while True:
        try:
            async with open_channel(address, max_message_bytes=max_message_bytes) as channel:
                await carry(channel, backoff)
            reason = "the peer ended the link"
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            reason = "given up"
        except (grpc.aio.AioRpcError, LinkRefused, TimeoutError) as error:
            reason = _reason(error)
        except Exception:
            log.exception("link failed", address=address)
            reason = "an unexpected error"
        if reason != told:
            told = reason
            log.info("not linked", address=address, reason=reason)
        await asyncio.sleep(backoff.next())


def _cancelled_from_outside() -> bool:
    """Whether this task is to end, rather than a call of its own that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name
    return str(error) or "it did not answer in time"
