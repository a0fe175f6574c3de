"""Who a process is towards its peers: a stable name, and an incarnation that is new in each of its lives."""

from __future__ import annotations

import re
import secrets
import time

from services.ring.identity import PEER_NAME

_RANDOM_BITS = 20


def valid_name(name: str) -> bool:
    """Whether ``name`` may stand in a Hello."""
    return PEER_NAME.fullmatch(name) is not None


def default_name(service: str, hostname: str, place: str) -> str:
    """A name for a process that was given none: equal after a restart, different from its neighbours'."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{service}-{hostname}-{place}")[:128]


def new_incarnation() -> int:
    """A number greater than that of every earlier life of this process.

    Milliseconds since 1970 above 20 random bits, so that two lives that begin in one millisecond differ too.
    """
    return (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
