"""Nobody takes so much that the next one finds no room, and nothing is remembered of who holds nothing."""

from __future__ import annotations

import pytest

from services.ring.dynamic_threshold import DynamicThreshold


def fill(shares: DynamicThreshold, *tenants: str) -> None:
    """Everybody takes one in turn until nobody can."""
    going = True
    while going:
        going = False
        for tenant in tenants:
            if shares.has_room(tenant, 1):
                shares.take(tenant, 1)
                going = True


@pytest.mark.parametrize(("tenants", "each"), [("a", 300), ("ab", 200), ("abc", 150)])
def test_each_has_as_much_as_is_left_free(tenants: str, each: int) -> None:
    shares = DynamicThreshold(600)
    fill(shares, *tenants)
    assert [shares.held(tenant) for tenant in tenants] == pytest.approx([each] * len(tenants), abs=1)
    assert shares.total <= 600 - each + 1


def test_who_comes_while_another_holds_all_it_can_has_room() -> None:
    shares = DynamicThreshold(100)
    fill(shares, "flood")
    assert not shares.has_room("flood", 1)
    fill(shares, "late")
    assert shares.held("late") == 25


def test_the_only_place_may_be_taken() -> None:
    shares = DynamicThreshold(1)
    fill(shares, "a", "b")
    assert shares.total == 1


def test_what_is_larger_than_a_share_has_its_turn_alone() -> None:
    shares = DynamicThreshold(10)
    assert shares.has_room("a", 1000)
    shares.take("a", 1000)
    assert not shares.has_room("b", 1)
    assert shares.has_room("b", 0)
    assert shares.has_room("a", 5, freed=1000)
    shares.give_back("a", 1000)
    assert shares.has_room("b", 1000)


def test_what_is_given_back_is_forgotten() -> None:
    shares = DynamicThreshold(100)
    for number in range(50):
        shares.take(f"tenant {number}", 1)
        shares.take(f"tenant {number}", 0)
    assert len(shares) == 50
    for number in range(50):
        shares.give_back(f"tenant {number}", 1)
    assert (len(shares), shares.total) == (0, 0)
