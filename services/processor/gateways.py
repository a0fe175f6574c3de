"""The gateways before this processor, for its live page: each names itself in the metadata of its calls.

A gateway watches the processor's health as long as it runs, so it is known before its first request. The name is as the
caller gives it, and nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from services.ring.identity import GATEWAY_HEADER, PEER_NAME

MAX_GATEWAYS = 64
"""Gateways that are known at a time; further ones are served, but not known."""


@dataclass(slots=True, eq=False)
class Gateway:
    """A gateway that has calls here."""

    name: str
    open_calls: int = 0
    delivered_tokens: int = 0
    """Output tokens of its requests since its first call."""


class Gateways:
    """All gateways that have calls here."""

    def __init__(self) -> None:
        self._by_name: dict[str, Gateway] = {}

    def all(self) -> list[Gateway]:
        """Ordered by name."""
        return sorted(self._by_name.values(), key=lambda gateway: gateway.name)

    def enter(self, metadata: Iterable[tuple[str, str | bytes]]) -> Gateway | None:
        """The gateway that makes a call with ``metadata``; None if it is none. Call ``leave`` when the call ends."""
        name = next((value for key, value in metadata if key == GATEWAY_HEADER), None)
        if not isinstance(name, str) or PEER_NAME.fullmatch(name) is None:
            return None
        if (gateway := self._by_name.get(name)) is None:
            if len(self._by_name) >= MAX_GATEWAYS:
                return None
            gateway = self._by_name[name] = Gateway(name)
        gateway.open_calls += 1
        return gateway

    def leave(self, gateway: Gateway | None) -> None:
        """A call has ended that ``enter`` knew."""
        if gateway is None:
            return
        gateway.open_calls -= 1
        if not gateway.open_calls:
            del self._by_name[gateway.name]

    def watched(self, metadata: Iterable[tuple[str, str | bytes]]) -> Callable[[], None]:
        """As ``enter``, for a health watch; returns its ``leave``."""
        return partial(self.leave, self.enter(metadata))
