"""Who is on a route, found by either of its ends, or both, without a look at all others."""

from __future__ import annotations

from typing import Generic, TypeVar

from services.ring.identity import PeerId
from services.ring.routes import Route

T = TypeVar("T")


class RouteIndex(Generic[T]):
    """Items by key, each on one route."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._items: dict[PeerId, dict[PeerId, dict[str, T]]] = {}
        """By engine, detokenizer and key; none of them is empty."""

    def put(self, key: str, item: T, route: Route) -> None:
        """An item is on a route, and no longer on another."""
        self.discard(key)
        self._routes[key] = route
        self._items.setdefault(route.engine, {}).setdefault(route.detokenizer, {})[key] = item

    def discard(self, key: str) -> None:
        """An item is on no route."""
        if (route := self._routes.pop(key, None)) is None:
            return
        at_engine = self._items[route.engine]
        on_route = at_engine[route.detokenizer]
        del on_route[key]
        if not on_route:
            del at_engine[route.detokenizer]
        if not at_engine:
            del self._items[route.engine]

    def at_engine(self, engine: PeerId) -> list[T]:
        """Those whose route has this engine."""
        return [item for on_route in self._items.get(engine, {}).values() for item in on_route.values()]

    def at_detokenizer(self, detokenizer: PeerId) -> list[T]:
        """Those whose route has this detokenizer."""
        return [item for at_engine in self._items.values() for item in at_engine.get(detokenizer, {}).values()]

    def on(self, route: Route) -> list[T]:
        """Those on exactly this route."""
        return list(self._items.get(route.engine, {}).get(route.detokenizer, {}).values())
