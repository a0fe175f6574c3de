"""Which address leads to which engine: of several that lead to the same life of one, a process uses the first.

Else its streams would supersede each other without end: to an engine they are one peer that attaches again and again.
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
        self._warned: set[tuple[str, PeerId]] = set()

    @contextmanager
    def claim(self, engine: PeerId, address: str) -> Iterator[None]:
        """Have an engine for as long as its link is tried and stands. Raises ``LinkRefused`` if another address has it.

        That is asked again and again, so that the address is used when it leads elsewhere, or the other is lost; the
        warning comes once.
        """
        first = self._addresses.setdefault(engine, address)
        if first != address:
            if (address, engine) not in self._warned:
                self._warned.add((address, engine))
                log.warning("two addresses of one engine", engine=engine.name, address=address, used=first)
            raise LinkRefused(f"it is {engine.name}, which {first} leads to already")
        try:
            yield
        finally:
            del self._addresses[engine]
