"""Requests that would wait too long, by the measured throughput, are refused; others are taken."""

from __future__ import annotations

import pytest

from services.processor.admission.backlog import Backlog, BacklogLimits
from services.ring.errors import Code, Refused, Status

TICK = 0.05


class Clock:
    """A backlog whose engines compute ``speed`` tokens a second."""

    def __init__(self, max_requests: int = 1000, max_seconds: float = 10.0) -> None:
        self.backlog = Backlog(BacklogLimits(max_requests, max_seconds))
        self.now = 100.0
        self.taken = 0
        self.computing = 0.0
        """Seconds of each request."""

    def take(self, count: int, tenant: str = "", model: str = "m", *, admit: bool = True) -> list[str]:
        names = [f"{tenant}-{self.taken + number}" for number in range(count)]
        self.taken += count
        for name in names:
            self.backlog.check(model, tenant, None, None)
            self.backlog.enter(name, model, tenant)
            if admit:
                self.backlog.admit(name, self.now)
        return names

    def compute(self, seconds: float, speed: float, request_tokens: int = 50, tenant: str = "") -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.backlog.computed("m", round(speed * TICK))
            self.backlog.ended("m", tenant, request_tokens, seconds=self.computing)
            self.backlog.tick(self.now)

    def refusal(
        self, tenant: str = "", timeout: float | None = None, max_tokens: int | None = None, model: str = "m"
    ) -> Status | None:
        try:
            self.backlog.check(model, tenant, timeout, max_tokens)
        except Refused as refused:
            return refused.status
        return None


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_request_is_taken_while_its_wait_is_within_the_limit(clock: Clock) -> None:
    clock.take(50)
    clock.compute(seconds=3, speed=1000)  # 20 requests a second: 50 wait 2.5 s
    taken = 50
    while (status := clock.refusal()) is None:
        clock.take(1)
        taken += 1
    assert taken == pytest.approx(200, abs=3), "they wait 10 s"
    assert status.code is Code.RESOURCE_EXHAUSTED
    assert status.message.startswith("the estimated wait of 10.")
    assert status.retry_after_ms is not None
    assert 4900 <= status.retry_after_ms <= 6400, "half of the queue, and a spread"


def test_a_request_that_would_wait_longer_than_its_time_is_refused_at_once(clock: Clock) -> None:
    clock.take(50)
    clock.compute(seconds=3, speed=1000)
    assert clock.refusal(timeout=3.5) is None
    status = clock.refusal(timeout=2.0)
    assert status is not None
    assert "too little time: 2.0 s until the deadline" in status.message


def test_a_request_must_have_time_to_be_computed_too(clock: Clock) -> None:
    clock.computing = 4.0
    clock.take(50)
    clock.compute(seconds=3, speed=1000)
    assert clock.refusal(timeout=7.0) is not None, "2.5 s in the queue, 4 s at work, and a margin"
    assert clock.refusal(timeout=9.0) is None
    assert clock.refusal(timeout=7.0, max_tokens=5) is None, "a tenth of what others have"


def test_the_estimate_follows_a_change_of_speed_within_seconds(clock: Clock) -> None:
    clock.take(100)
    clock.compute(seconds=3, speed=10_000)
    assert clock.refusal(timeout=1.0) is None
    clock.compute(seconds=15, speed=500)
    assert clock.refusal(timeout=1.0) is not None
    clock.compute(seconds=15, speed=10_000)
    assert clock.refusal(timeout=1.0) is None


def test_a_pause_does_not_count_as_slowness(clock: Clock) -> None:
    clock.take(100)
    clock.compute(seconds=5, speed=1000)
    clock.now += 60.0
    clock.compute(seconds=1, speed=1000)
    assert clock.refusal() is None


def test_throughput_is_not_measured_while_nothing_waits(clock: Clock) -> None:
    for _ in range(20):
        (name,) = clock.take(1)
        clock.compute(seconds=0.2, speed=20)
        clock.backlog.leave(name)
        clock.compute(seconds=0.8, speed=20)
    clock.take(400)
    assert clock.refusal(timeout=1.0) is None


def test_a_tenant_waits_for_its_own_requests_and_its_turn(clock: Clock) -> None:
    clock.take(150, "flood")
    clock.compute(seconds=3, speed=1000)
    assert clock.refusal("flood", timeout=2.0) is not None
    assert clock.refusal("other", timeout=0.14) is None, "two tenants in turns, 50 ms each"
    assert clock.refusal("other", timeout=0.11) is not None


def test_small_requests_are_not_refused_for_the_large_ones_of_others(clock: Clock) -> None:
    clock.compute(seconds=1, speed=1000, tenant="other")
    clock.take(3, "flood")
    clock.compute(seconds=30, speed=1000, request_tokens=100_000, tenant="flood")
    assert clock.refusal("other", timeout=0.14) is None, "two tenants in turns, 50 ms each"
    assert clock.refusal("flood", timeout=300.0) is not None, "4 requests, 100 s each"
    assert clock.refusal("new", timeout=20.0) is not None, "nothing is known of it: its requests may be as large"
    for number in range(2000):
        clock.backlog.ended("m", f"tenant {number}", 1, 0.0)
    assert len(clock.backlog._queues["m"].by_tenant) < 2000
    assert clock.refusal("other", timeout=60.0) is None, "and all others ask for little now"


def test_places_are_freed_once_and_tenants_are_forgotten(clock: Clock) -> None:
    small = Clock(max_requests=10)
    names = small.take(5)
    assert small.refusal() is not None
    for _ in range(2):
        small.backlog.leave(names[0])
    small.backlog.leave("nobody")
    small.take(1)
    assert small.refusal() is not None
    for number in range(1000):
        for name in clock.take(1, f"tenant {number}"):
            clock.backlog.leave(name)
    assert not clock.backlog._waiting
    assert not clock.backlog._queues["m"].waiting
    assert len(clock.backlog._places) == 0


def test_a_stay_is_the_wait_and_the_compute_time(clock: Clock) -> None:
    assert clock.backlog.stay("") is None, "nothing has ended yet"
    clock.computing = 4.0
    clock.take(50)
    clock.compute(seconds=3, speed=1000)
    assert clock.backlog.stay("") == pytest.approx(4.0 + 2.5, rel=0.1)
    assert clock.backlog.stay("another") == pytest.approx(4.0, rel=0.1)


def test_a_flood_for_one_model_gets_no_request_for_another_refused(clock: Clock) -> None:
    clock.take(150, "flood")
    clock.compute(seconds=3, speed=500, tenant="flood")
    clock.backlog.ended("other model", "flood", 50, 0.0)
    for tenant in ("flood", "other"):
        assert clock.refusal(tenant, timeout=0.1) is not None
        assert clock.refusal(tenant, timeout=0.1, model="other model") is None
    assert clock.refusal("flood") is not None
    assert clock.refusal("flood", model="other model") is None


def test_a_tenant_of_which_nothing_waits_has_its_turn_however_many_others_wait(clock: Clock) -> None:
    for number in range(200):
        clock.take(1, f"flood {number}")
    clock.compute(seconds=3, speed=100, tenant="honest")
    assert clock.refusal("honest") is None, "its fair share begins 100 s from now, as it would if it came later"
    assert clock.refusal("honest", timeout=50.0) is not None
    clock.take(1, "honest")
    assert clock.refusal("honest") is not None


def test_what_waits_to_be_tokenized_does_not_make_engines_look_slow(clock: Clock) -> None:
    first = clock.take(150, admit=False)
    clock.compute(seconds=3, speed=10)
    assert clock.refusal(timeout=0.1) is None
    for name in first:
        clock.backlog.admit(name, clock.now)
        clock.backlog.admit(name, clock.now)
    clock.compute(seconds=3, speed=100)
    assert clock.refusal() is not None
    for name in first:
        clock.backlog.leave(name)
    clock.take(10, admit=False)
    assert clock.refusal(timeout=0.1) is None


def test_models_that_nobody_asks_for_are_forgotten(clock: Clock) -> None:
    (name,) = clock.take(1, model="asked for")
    for number in range(200):
        clock.backlog.computed(f"model {number}", 1)
    assert len(clock.backlog._queues) < 100
    assert clock.backlog._queues["asked for"].waiting
    clock.backlog.leave(name)
    assert not clock.backlog.num_waiting
