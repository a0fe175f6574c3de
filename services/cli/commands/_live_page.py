"""Reads a processor's live page for ``ringline status``, which thus shows the same numbers."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

from services.common.config.addresses import default_metrics_port, host_and_port, join_address
from services.common.telemetry.metrics_endpoint import server_header

_SECONDS = 2.0
_MAX_BYTES = 1 << 20
_SHOWN_ADDRESSES = 4
_PEERS = {"engines": "engine", "detokenizers": "detokenizer"}
"""The services that a processor looks for, by their names on the page."""


@dataclass(frozen=True, slots=True)
class LivePage:
    """A processor's own requests and peers."""

    live_requests: int
    waiting_requests: int
    """Not begun by any engine."""
    engines: int
    """Attached ones."""
    detokenizers: int
    missing: dict[str, list[str]]
    """For engines and detokenizers: addresses where the processor looks for one, but none is attached."""

    def missing_peers(self) -> Iterator[str]:
        """A line per kind of missing peer: how many are attached, where the processor looks, what to do."""
        for peers, addresses in self.missing.items():
            service, attached, known = _PEERS[peers], getattr(self, peers), getattr(self, peers) + len(addresses)
            what = f"{attached} of {known} {peers} are attached"
            if not attached:
                what = f"no {service} is attached (0 of {known})"
            shown, more = ", ".join(addresses[:_SHOWN_ADDRESSES]), len(addresses) - _SHOWN_ADDRESSES
            if more > 0:
                shown += f" and at {more} more"
            if addresses:
                yield f"{what}: none at {shown}; it may still be starting, else `ringline {service}` starts one"


def read_live_page(address: str, metrics: str | None) -> LivePage | None:
    """The page of the processor at ``address``; None if it has none, or it cannot be reached.

    ``metrics``: the URL of its metrics; without it, the port that belongs to the processor's by default.
    """
    if metrics is not None:
        place = urlsplit(metrics).netloc
    elif address.startswith("unix:"):
        return None
    else:
        host, port = host_and_port(address)
        place = join_address(host, default_metrics_port(port))
    try:
        page = _get(place)
        missing = {peers: [_printable(where) for where in page["missing"][peers]] for peers in _PEERS}
        engines, detokenizers = (len(page[peers]) for peers in _PEERS)
        return LivePage(int(page["live_requests"]), int(page["waiting_requests"]), engines, detokenizers, missing)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # no page, or one of another release


def _printable(address: object) -> str:
    """The address; raises ``ValueError`` for control characters, which a terminal would obey."""
    if not isinstance(address, str) or not address.isprintable():
        raise ValueError(f"{address!r} is not an address")
    return address


def _get(place: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(place, timeout=_SECONDS)
    connection.connect()
    # The timeout bounds each read; this bounds all of them together.
    cut = Timer(_SECONDS, _shut_down, [connection.sock])
    try:
        cut.start()
        connection.request("GET", "/ring.json")
        answer = connection.getresponse()
        if answer.getheader("Server") != server_header("processor"):
            raise ValueError(f"{place} is not a processor's metrics port")
        page = json.loads(answer.read(_MAX_BYTES))
        if not isinstance(page, dict):
            raise ValueError("not an object")
        return page
    finally:
        cut.cancel()
        connection.close()


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):  # it has been closed just now
        connected.shutdown(socket.SHUT_RDWR)
