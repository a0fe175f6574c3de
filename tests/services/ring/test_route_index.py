"""Requests are found by their engine, their detokenizer and both, and nothing is kept of those that are gone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from services.ring.identity import PeerId
from services.ring.routing_logic import Route, RouteIndex

ENGINES, DETOKENIZERS = ([PeerId(f"{kind}{number}", 1) for number in range(3)] for kind in "ed")
ROUTES = st.builds(Route, st.sampled_from(ENGINES), st.sampled_from(DETOKENIZERS))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), ROUTES)), max_size=25))
def test_the_index_agrees_with_a_full_scan(steps: list[tuple[str, Route | None]]) -> None:
    index: RouteIndex[str] = RouteIndex()
    routes: dict[str, Route] = {}
    for key, route in steps:
        routes.pop(key, None)
        if route is None:
            index.discard(key)
        else:
            index.put(key, key, route)
            routes[key] = route
        for engine in ENGINES:
            assert set(index.at_engine(engine)) == {key for key, route in routes.items() if route.engine == engine}
        for detokenizer in DETOKENIZERS:
            expected = {key for key, route in routes.items() if route.detokenizer == detokenizer}
            assert set(index.at_detokenizer(detokenizer)) == expected
        for route in (Route(engine, detokenizer) for engine in ENGINES for detokenizer in DETOKENIZERS):
            assert set(index.on(route)) == {key for key, other in routes.items() if other == route}
    for key in routes:
        index.discard(key)
    assert not index._items
