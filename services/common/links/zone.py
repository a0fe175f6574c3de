"""The zone of a process, such as a machine, rack or region: a label in the initial metadata of the links to it, by
which processors prefer peers of their own zone.
"""

from __future__ import annotations

from typing import Any

from services.common.rpc.handlers import Context
from services.ring.identity import PEER_NAME

KEY = "ringline-zone"


async def tell_zone(context: Context, zone: str | None) -> None:
    """Send the label, if there is one, before the first message of a call."""
    if zone is not None:
        await context.send_initial_metadata(((KEY, zone),))


async def zone_of(call: Any) -> str | None:
    """The label of the process that answered ``call``; None without one, or for an invalid one."""
    zone = dict(await call.initial_metadata() or ()).get(KEY)
    return zone if isinstance(zone, str) and PEER_NAME.fullmatch(zone) else None
