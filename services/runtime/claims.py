"""Which address leads to which peer: of several that lead to the same life of one, a process uses one.

Else its streams would supersede each other without end: to that peer they are one process that comes again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from services.ring.identity import PeerId
from services.runtime.redial import LinkRefused

log = structlog.get_logger(__name__)


class Claims:
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
