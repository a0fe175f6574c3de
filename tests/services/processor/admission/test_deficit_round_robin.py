"""Tenants get equal shares of bytes, whatever the size of what they send."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.processor.admission.deficit_round_robin import DeficitRoundRobin

QUANTUM = 100


@dataclass(frozen=True)
class Work:
    tenant: str
    number: int
    size: int


def filled(*work: tuple[str, int]) -> DeficitRoundRobin[Work]:
    queue: DeficitRoundRobin[Work] = DeficitRoundRobin(QUANTUM)
    for number, (tenant, size) in enumerate(work):
        queue.append(tenant, str(number), Work(tenant, number, size))
    return queue


def drained(queue: DeficitRoundRobin[Work]) -> list[list[Work]]:
    batches = []
    while queue:
        batches.append(queue.take())
    return batches


def test_large_work_is_paid_for_over_several_rounds() -> None:
    queue = filled(("large", 350), ("large", 350), *[("small", 50)] * 10)
    order = [work.tenant for batch in drained(queue) for work in batch]
    assert order.index("large") == 6, "its credit reaches 350 in its fourth turn"
    assert order[-1] == "large"


def test_a_tenant_that_returns_has_no_credit() -> None:
    queue = filled(("a", 10))
    assert len(queue.take()) == 1
    for number in range(2):
        queue.append("a", f"a{number}", Work("a", number, 80))
        queue.append("b", f"b{number}", Work("b", number, 80))
    assert [[work.tenant for work in batch] for batch in drained(queue)] == [["a"], ["b"], ["a"], ["b"]]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 350)), max_size=30), st.sets(st.integers(0, 20)))
def test_all_work_comes_once_in_order_and_fairly(asked: list[tuple[str, int]], gone: set[int]) -> None:
    queue = filled(*asked)
    work = {number: Work(tenant, number, size) for number, (tenant, size) in enumerate(asked)}
    for number in gone & work.keys():
        assert queue.remove(work[number].tenant, str(number)) == work.pop(number)
    assert queue.remove("a", "nothing") is None
    left = {tenant: [one for one in work.values() if one.tenant == tenant] for tenant in "abc"}
    taken = dict.fromkeys("abc", 0)
    both = {tenant for tenant in "abc" if left[tenant]}
    for batch in drained(queue):
        assert sum(one.size for one in batch) <= QUANTUM or len(batch) == 1
        for one in batch:
            assert left[one.tenant].pop(0) == one
            taken[one.tenant] += one.size
            if all(left[tenant] for tenant in both):
                spread = [taken[tenant] for tenant in both]
                assert max(spread) - min(spread) <= 2 * QUANTUM + 350
    assert not any(left.values())
    assert not queue._queues
