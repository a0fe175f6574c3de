"""Nobody takes so much that the next one finds no room, and nothing is remembered of who holds nothing."""

from __future__ import annotations

import pytest

from services.ring.errors import Refused
from services.ring.tenant_quota import TenantMemoryQuota, TenantQuota


def fill(threshold: TenantQuota, *tenants: str) -> None:
    """Everybody takes one in turn until nobody can."""
    going = True
    while going:
        going = False
        for tenant in tenants:
            if threshold.has_room(tenant, 1):
                threshold.take(tenant, 1)
                going = True


@pytest.mark.parametrize(("tenants", "each"), [("a", 300), ("ab", 200), ("abc", 150)])
def test_each_has_as_much_as_is_left_free(tenants: str, each: int) -> None:
    threshold = TenantQuota(600)
    fill(threshold, *tenants)
    assert [threshold.held(tenant) for tenant in tenants] == pytest.approx([each] * len(tenants), abs=1)
    assert threshold.total <= 600 - each + 1


def test_who_comes_while_another_holds_all_it_can_has_room() -> None:
    threshold = TenantQuota(100)
    fill(threshold, "flood")
    assert not threshold.has_room("flood", 1)
    fill(threshold, "late")
    assert threshold.held("late") == 25


def test_the_only_place_may_be_taken() -> None:
    threshold = TenantQuota(1)
    fill(threshold, "a", "b")
    assert threshold.total == 1


def test_what_is_larger_than_a_share_has_its_turn_alone() -> None:
    threshold = TenantQuota(10)
    assert threshold.has_room("a", 1000)
    threshold.take("a", 1000)
    assert not threshold.has_room("b", 1)
    assert threshold.has_room("b", 0)
    assert threshold.has_room("a", 5, freed=1000)
    threshold.give_back("a", 1000)
    assert threshold.has_room("b", 1000)


def test_what_is_given_back_is_forgotten() -> None:
    threshold = TenantQuota(100)
    for number in range(50):
        threshold.take(f"tenant {number}", 1)
        threshold.take(f"tenant {number}", 0)
    assert len(threshold) == 50
    for number in range(50):
        threshold.give_back(f"tenant {number}", 1)
    assert (len(threshold), threshold.total) == (0, 0)


def test_large_requests_of_many_leave_room_for_a_small_one() -> None:
    memory = TenantMemoryQuota("prompt", "this engine", "results", 512, lambda tenant: 100)
    for number in range(20):
        if memory.has_room(f"tenant {number}", 32):
            memory.take(f"tenant {number}", 32)
    assert memory.total == 512 - 32
    memory.check("late", 16)
    with pytest.raises(Refused, match=r"takes 17 bytes of results.* has room for 16 more .*32 of 512 bytes are free"):
        memory.check("late", 17)
