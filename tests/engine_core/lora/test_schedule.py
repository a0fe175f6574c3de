"""When requests begin that need adapters: limits, order, and that nothing is stuck."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.lora.schedule import MAX_OVERTAKES, MAX_SKIPS, Action, AdapterSchedule, Admit, Load, Refuse


class Owner:
    """Does what a schedule says, and keeps its own books."""

    def __init__(self, max_loras: int, max_loaded: int, max_bytes: int) -> None:
        self.schedule = AdapterSchedule(max_loras, max_loaded, max_bytes)
        self.limits = max_loras, max_loaded, max_bytes
        self.wanted: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.refused: set[str] = set()
        self.resident: dict[int, str] = {}
        self.loading: list[int] = []

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Load):
                for each in action.evicted:
                    assert each not in self.running.values()
                    assert each not in self.loading
                    del self.resident[each]
                self.resident[action.adapter_id] = action.digest
                self.loading.append(action.adapter_id)
            elif isinstance(action, Admit):
                assert self.resident[action.adapter_id] == self.wanted[action.request_id]
                assert action.adapter_id not in self.loading
                assert action.request_id not in self.running
                self.running[action.request_id] = action.adapter_id
            else:
                assert isinstance(action, Refuse)
                assert action.request_id not in self.running
                self.refused.add(action.request_id)
        self.check()

    def check(self) -> None:
        max_loras, max_loaded, max_bytes = self.limits
        assert len({*self.running.values(), *self.loading}) <= max_loras
        assert len(self.resident) <= max_loaded
        assert sum(self.sizes[each] for each in self.resident.values()) <= max_bytes
        assert len(set(self.resident.values())) == len(self.resident)

    def add(self, request_id: str, tenant: str, digest: str, nbytes: int = 1) -> None:
        self.wanted[request_id], self.sizes[digest] = digest, nbytes
        self.take(self.schedule.add(request_id, tenant, digest, nbytes))

    def finish_load(self, *, fails: bool = False) -> None:
        adapter_id = self.loading.pop(0)
        if fails:
            del self.resident[adapter_id]
            self.take(self.schedule.failed(adapter_id))
        else:
            self.take(self.schedule.loaded(adapter_id))

    def end(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        self.take(self.schedule.end(request_id))


def test_schedule_loads_once_and_shares() -> None:
    owner = Owner(2, 2, 10)
    owner.add("a", "", "x")
    owner.add("b", "", "x")
    assert owner.loading == [0]
    assert not owner.running
    owner.finish_load()
    assert owner.running == {"a": 0, "b": 0}
    owner.add("c", "", "x")
    assert owner.running["c"] == 0
    assert owner.schedule.holds("x")


def test_schedule_evicts_the_least_recently_used() -> None:
    owner = Owner(1, 2, 10)
    for request, digest in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")):
        owner.add(request, "", digest)
        if owner.loading:
            owner.finish_load()
        owner.end(request)
    assert sorted(owner.resident.values()) == ["x", "z"]


def test_schedule_lets_others_pass_a_bounded_number_of_times() -> None:
    owner = Owner(1, 1, 10)
    owner.add("0", "", "x")
    owner.finish_load()
    owner.add("waits", "", "y")
    for number in range(1, 2 * MAX_OVERTAKES):
        owner.add(str(number), "", "x")
    assert len(owner.running) == 1 + MAX_OVERTAKES
    for request in list(owner.running):
        owner.end(request)
    owner.finish_load()
    assert list(owner.running) == ["waits"]
    owner.end("waits")
    owner.finish_load()
    assert len(owner.running) == MAX_OVERTAKES - 1


def test_schedule_gives_tenants_turns() -> None:
    owner = Owner(1, 1, 10)
    owner.add("first", "flood", "x")
    owner.finish_load()
    for number in range(20):
        owner.add(f"flood {number}", "flood", f"f{number}")
    owner.add("other", "other", "o")
    began = []
    for _ in range(3):
        owner.end(next(iter(owner.running)))
        owner.finish_load()
        began += owner.running
    assert "other" in began


def test_schedule_lets_smaller_adapters_pass_a_bounded_number_of_times() -> None:
    """The others always have one under way, so that a large one never finds all of the memory free."""
    owner = Owner(3, 4, 10)
    owner.add("0", "small", "x0", 5)
    owner.finish_load()
    owner.add("large", "large", "y", 10)
    began = 0
    for number in range(1, 2 * MAX_SKIPS):
        owner.add(str(number), "small", f"x{number}", 5)
        while owner.loading:
            owner.finish_load()
        owner.end(next(iter(owner.running)))
        while owner.loading:
            owner.finish_load()
        if "large" in owner.running:
            break
        began = number
    assert began <= MAX_SKIPS + 1
    owner.end("large")
    owner.finish_load()
    assert owner.running, "then others have their turn again"


def test_schedule_refuses_what_can_never_fit() -> None:
    owner = Owner(1, 1, 10)
    owner.add("large", "", "x", 11)
    assert owner.refused == {"large"}


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 3), st.integers(4, 8))
def test_schedule_keeps_limits_and_ends_empty(data: st.DataObject, loras: int, more: int, nbytes: int) -> None:
    owner = Owner(loras, loras + more, nbytes)
    live: list[str] = []
    for number in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(("add", "add", "load", "fail", "end"))):
            case "add":
                digest = data.draw(st.integers(0, 6))
                owner.add(str(number), data.draw(st.sampled_from("ab")), str(digest), 1 + digest % 4)
                live.append(str(number))
            case "load" if owner.loading:
                owner.finish_load()
            case "fail" if owner.loading:
                owner.finish_load(fails=True)
            case "end" if live:
                owner.end(live.pop(data.draw(st.integers(0, len(live) - 1))))
    while owner.loading or owner.running:
        while owner.loading:
            owner.finish_load()
        for request in list(owner.running):
            owner.end(request)
            live.remove(request)
    assert set(live) <= owner.refused
    assert owner.schedule.num_waiting == 0
    assert owner.schedule.num_active == 0
