"""One clock per timeout, against a model that adds up the moments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.ring.route_timeout import RouteTimeout

EVENTS = ("lost", "refused", "routed", "heard")


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 10)), max_size=30))
def test_time_without_a_route_and_on_refusing_routes_counts(events: list[tuple[str, int]]) -> None:
    timeout = RouteTimeout()
    timeout.lost(0.0)
    now = waited = on_route = 0
    routed = well = False
    for event, seconds in events:
        if (event in ("refused", "heard") and not routed) or (event == "routed" and routed):
            continue
        match event:
            case "lost":
                timeout.lost(now)
                routed = well = False
            case "refused":
                timeout.refused(now)
                waited += 0 if well else on_route
                routed = well = False
            case "routed":
                timeout.routed(now)
                routed, on_route = True, 0
            case "heard":
                timeout.heard()
                waited, well = 0, True
        if routed:
            on_route += seconds
        else:
            waited += seconds
        now += seconds
        if not routed:
            assert timeout.waited(now) == waited


def test_late_output_of_a_lost_route_does_not_reset_the_clock() -> None:
    timeout = RouteTimeout()
    timeout.lost(0.0)
    timeout.heard()
    assert timeout.waited(3.0) == 3.0
