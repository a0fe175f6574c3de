"""No more requests of a tenant go ahead than may; the rest follow by priority and arrival, and none is lost."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.processor.admission.tenant_window import TenantWindow

MOST = 2
TENANTS = ("a", "b")


def test_a_tenant_with_many_priorities_is_asked_for_once() -> None:
    """Each had cost the event loop a look at the policy file: 20 ms for 2,048 of them."""
    window: TenantWindow[int] = TenantWindow()
    for index in range(MOST + 10):
        window.enter("a", index, str(index), index, MOST)
    asked: list[str] = []
    assert window.release(lambda tenant: asked.append(tenant) or MOST) == []
    assert asked == ["a"]


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

    @rule(data=st.data(), times=st.integers(1, 2))
    def leave(self, data: st.DataObject, times: int) -> None:
        if self.ahead:
            name = data.draw(st.sampled_from(sorted(self.ahead)))
            assert self.window.remove(*self.ahead.pop(name), str(name)) is None, "it is ahead"
            for _ in range(times):
                self.window.leave(str(name))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.kept:
            name = data.draw(st.sampled_from(sorted(self.kept)))
            assert self.window.remove(*self.kept.pop(name), str(name)) == name

    @rule(most=st.sampled_from([MOST, MOST, None]))
    def release(self, most: int | None) -> None:
        released = sorted(self.window.release(lambda tenant: most), key=lambda name: self.kept[name][0])
        for name, rank in sorted(self.kept.items(), key=lambda item: (*item[1], item[0])):
            if most is None or self.has_room(*rank):
                self.ahead[name] = self.kept.pop(name)
                assert released.pop(0) == name
        assert not released

    @rule()
    def clear(self) -> None:
        self.window.clear()
        for name in (*self.ahead, *self.kept):
            self.window.leave(str(name))
        self.ahead.clear()
        self.kept.clear()

    @invariant()
    def nothing_else_is_remembered(self) -> None:
        assert bool(self.window) == bool(self.kept)
        assert self.window._ahead == {str(name): rank for name, rank in self.ahead.items()}
        assert self.window._priorities.keys() == {tenant for tenant, _ in self.ahead.values()}


TestWindow = WindowMachine.TestCase
