"""No more requests of a tenant go ahead than may; the rest follow by priority and arrival, and none is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.processor.admission.tenant_window import TenantWindow

MOST = 2
TENANTS = ("a", "b")


def test_requests_beyond_the_bound_are_held_back_until_one_has_begun() -> None:
    window: TenantWindow[str] = TenantWindow()
    assert [window.enter("a", 0, name, name, MOST) for name in ("1", "2", "3", "4")] == [True, True, False, False]
    assert window.enter("b", 0, "5", "5", MOST), "another tenant's are not in its way"
    assert window.release(lambda tenant: MOST) == []
    window.leave("2")
    window.leave("2")
    assert window.release(lambda tenant: MOST) == ["3"]
    assert window
    assert window.release(lambda tenant: None) == ["4"]
    assert not window


def test_a_request_of_higher_priority_goes_ahead_at_once() -> None:
    window: TenantWindow[str] = TenantWindow()
    for name in ("1", "2", "3"):
        window.enter("a", 0, name, name, MOST)
    assert not window.enter("a", 1, "later", "later", MOST)
    assert window.enter("a", -1, "urgent", "urgent", MOST)
    window.leave("1")
    assert window.release(lambda tenant: MOST) == [], "the urgent one is before them"
    window.leave("urgent")
    assert window.release(lambda tenant: MOST) == ["3"]


def test_a_removed_request_leaves_nothing_behind() -> None:
    window: TenantWindow[str] = TenantWindow()
    for name in ("1", "2", "3"):
        window.enter("a", 0, name, name, MOST)
    assert window.remove("1") is None, "it is ahead"
    assert window.remove("3") == "3"
    assert window.remove("3") is None
    for name in ("1", "2", "3"):
        window.leave(name)
    assert (window._ranks, window._ahead, window._held_back) == ({}, {}, {})


class WindowMachine(RuleBasedStateMachine):
    """Against lists that are looked through."""

    def __init__(self) -> None:
        super().__init__()
        self.window: TenantWindow[int] = TenantWindow()
        self.count = 0
        self.ahead: dict[int, tuple[str, int]] = {}
        self.kept: dict[int, tuple[str, int]] = {}

    def has_room(self, tenant: str, priority: int) -> bool:
        return sum(t == tenant and p <= priority for t, p in self.ahead.values()) < MOST

    @rule(tenant=st.sampled_from(TENANTS), priority=st.integers(-2, 2))
    def enter(self, tenant: str, priority: int) -> None:
        self.count += 1
        went = self.window.enter(tenant, priority, str(self.count), self.count, MOST)
        assert went == self.has_room(tenant, priority)
        (self.ahead if went else self.kept)[self.count] = tenant, priority

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.ahead:
            name = data.draw(st.sampled_from(sorted(self.ahead)))
            del self.ahead[name]
            self.window.leave(str(name))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.kept:
            name = data.draw(st.sampled_from(sorted(self.kept)))
            del self.kept[name]
            assert self.window.remove(str(name)) == name

    @rule()
    def release(self) -> None:
        released = self.window.release(lambda tenant: MOST)
        for tenant in TENANTS:
            for name in sorted(
                (n for n, (t, _) in self.kept.items() if t == tenant), key=lambda n: (self.kept[n][1], n)
            ):
                if self.has_room(*self.kept[name]):
                    self.ahead[name] = self.kept.pop(name)
                    assert [each for each in released if self.ahead.get(each, ("",))[0] == tenant].count(name) == 1
                else:
                    break
        assert len(released) == len(set(released))
        assert set(released) <= self.ahead.keys()

    @invariant()
    def counts_agree(self) -> None:
        counted = {tenant: Counter(p for t, p in self.ahead.values() if t == tenant) for tenant in TENANTS}
        assert self.window._ahead == {tenant: count for tenant, count in counted.items() if count}
        assert bool(self.window) == bool(self.kept)


TestWindow = WindowMachine.TestCase


def test_leaving_after_clear_is_no_error() -> None:
    window: TenantWindow[str] = TenantWindow()
    assert window.enter("flood", 0, "ahead", "", 1)
    assert not window.enter("flood", 0, "kept", "", 1)
    window.clear()
    assert window.remove("kept") is None
    for name in ("ahead", "kept"):
        window.leave(name)
    assert not window
    assert window.enter("flood", 0, "next", "", 1)
