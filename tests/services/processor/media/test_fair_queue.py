"""Each tenant gets its share of the time, whatever others send."""

from __future__ import annotations

import random

import pytest

from services.processor.media.fair_queue import FairQueue


@pytest.mark.parametrize("seed", range(20))
def test_tenants_that_always_wait_get_equal_time(seed) -> None:
    rng = random.Random(seed)
    tenants = [f"tenant {index}" for index in range(rng.randint(2, 6))]
    longest = {tenant: rng.choice([0.01, 0.1, 1.0]) for tenant in tenants}
    queue: FairQueue[str] = FairQueue()
    used = dict.fromkeys(tenants, 0.0)
    for tenant in tenants:
        for _ in range(3):
            queue.append(tenant, tenant)
    for _ in range(2000):
        tenant = queue.take()
        seconds = rng.uniform(0.5, 1) * longest[tenant]
        used[tenant] += seconds
        queue.append(tenant, tenant)
        queue.done(tenant, seconds)
        assert max(used.values()) - min(used.values()) <= 2 * max(longest.values())


def test_a_tenant_that_comes_late_is_next_and_gets_no_more_than_its_share() -> None:
    queue: FairQueue[str] = FairQueue()
    for index in range(100):
        queue.append("early", f"early {index}")
    for _ in range(50):
        queue.take()
        queue.done("early", 1.0)
    for index in range(3):
        queue.append("late", f"late {index}")
    order = []
    for _ in range(6):
        order.append(queue.take())
        queue.done(order[-1].split()[0], 1.0)
    assert [name.split()[0] for name in order[:2]] in (["early", "late"], ["late", "early"])
    assert sum(name.startswith("late") for name in order[:4]) == 2


def test_work_can_be_taken_back_and_nothing_is_kept() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.append("a", "one")
    queue.append("a", "two")
    assert queue.remove("a", "one")
    assert not queue.remove("a", "one")
    assert not queue.remove("b", "one")
    assert queue.take() == "two"
    assert not queue
    queue.done("a", 3.0)
    assert queue._clocks == {}
    queue.append("a", "three")
    assert queue.clear() == ["three"]
    assert not queue
