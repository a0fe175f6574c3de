"""Tenants take turns, each with as many bytes, whatever the size of what they send."""

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
    turns: DeficitRoundRobin[Work] = DeficitRoundRobin(QUANTUM)
    for number, (tenant, size) in enumerate(work):
        turns.append(tenant, str(number), Work(tenant, number, size))
    return turns


def drained(turns: DeficitRoundRobin[Work]) -> list[list[Work]]:
    batches = []
    while turns:
        batches.append(turns.take())
    return batches


def test_a_flood_waits_behind_itself() -> None:
    turns = filled(*[("flood", 50)] * 100, ("other", 10), ("third", 90))
    first, second, third = turns.take(), turns.take(), turns.take()
    assert [work.tenant for work in first] == ["flood", "flood"]
    assert [work.tenant for work in second] == ["other", "third"]
    assert [work.tenant for work in third] == ["flood", "flood"]


def test_large_work_is_paid_for_over_several_turns() -> None:
    turns = filled(("large", 350), ("large", 350), *[("small", 50)] * 10)
    order = [work.tenant for batch in drained(turns) for work in batch]
    assert order.index("large") == 6, "its credit reaches 350 in its fourth turn"
    assert order[-1] == "large"


def test_whoever_left_comes_back_without_credit() -> None:
    turns = filled(("a", 10))
    assert len(turns.take()) == 1
    for number in range(2):
        turns.append("a", f"a{number}", Work("a", number, 80))
        turns.append("b", f"b{number}", Work("b", number, 80))
    assert [[work.tenant for work in batch] for batch in drained(turns)] == [["a"], ["b"], ["a"], ["b"]]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 350)), max_size=30), st.sets(st.integers(0, 20)))
def test_everything_comes_once_in_its_tenants_order_and_fairly(asked: list[tuple[str, int]], gone: set[int]) -> None:
    turns = filled(*asked)
    work = {number: Work(tenant, number, size) for number, (tenant, size) in enumerate(asked)}
    for number in gone & work.keys():
        assert turns.remove(work[number].tenant, str(number)) == work.pop(number)
    assert turns.remove("a", "nothing") is None
    left = {tenant: [one for one in work.values() if one.tenant == tenant] for tenant in "abc"}
    taken = dict.fromkeys("abc", 0)
    both = {tenant for tenant in "abc" if left[tenant]}
    for batch in drained(turns):
        assert sum(one.size for one in batch) <= QUANTUM or len(batch) == 1
        for one in batch:
            assert left[one.tenant].pop(0) == one
            taken[one.tenant] += one.size
            if all(left[tenant] for tenant in both):
                spread = [taken[tenant] for tenant in both]
                assert max(spread) - min(spread) <= 2 * QUANTUM + 350
    assert not any(left.values())
    assert not turns._queues
