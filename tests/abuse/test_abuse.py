"""A few seconds of a few attacks, and tests of the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from services.gateway.endpoints import ENDPOINTS
from tests.abuse.attackers import ATTACKS, AttackResult, find
from tests.abuse.load import LoadResult
from tests.abuse.report import SLOW, SLOWER_THAN_FULL, Phase, ServiceReading
from tests.abuse.run import Options, Target, run_on
from tests.abuse.service import SPARE_FDS, Service, excess_over
from tests.abuse.stalls import CASES
from tests.chaos.outcome import Defect
from tests.ring import Ring

FEW = (
    find("garbage", "processor"),
    replace(find("storms", "engine"), fills=True),
    find("open and cancel", "detokenizer"),
)


async def test_a_few_attacks_disturb_nobody(ring: Ring) -> None:
    services = {}
    for kind in ("processor", "engine", "detokenizer"):
        metrics = ring.state.services[kind].metrics
        assert metrics is not None
        services[kind] = Service(kind, ring.addresses[kind], ring.pid(kind), metrics)
    options = Options(1, 1.6, clients=4, crowd=8, rate=10.0, kinds=2, attacks=FEW, release=60.0, together=False)
    report = await run_on(Target(services, [], {}), options, Phase.show)
    assert not report.problems
    assert report.full is not None, "the load was not measured beside a full engine"
    assert [phase.made.rounds > 0 for phase in report.phases if phase.made] == [True] * len(FEW)
    assert sum(phase.result.requests for phase in report.phases), "nobody else asked for anything"


def test_every_attack_has_a_name_of_its_own_and_every_service_its_attacks() -> None:
    names = Counter((attack.name, attack.service) for attack in ATTACKS)
    assert set(names.values()) == {1}
    assert Counter(attack.service for attack in ATTACKS).keys() == {
        "processor",
        "engine",
        "detokenizer",
        "embedder",
    }


def reading(**changed: object) -> ServiceReading:
    values = {"peak": 1, "final": 1, "budget": 2, "slowest_probe": 0.1, "failed_probes": 0} | changed
    return ServiceReading(**values)  # type: ignore[arg-type]  # a test says which


CALM = LoadResult(100, [0.1] * 100, [0.2] * 100)


@pytest.mark.parametrize(
    ("result", "service", "made"),
    [
        (LoadResult(100, [0.1] * 100, [SLOW + 1.0] * 100), reading(), None),
        (LoadResult(1, defects=Counter({Defect.LOST: 1}), details=["lost"]), reading(), None),
        (CALM, reading(peak=3), None),
        (CALM, reading(failed_probes=1), None),
        (CALM, reading(kept={"open calls": 1}), None),
        (CALM, reading(), AttackResult(1, 1, 0, ["KeyError()"])),
    ],
)
def test_the_report_finds(result: LoadResult, service: ServiceReading, made: AttackResult | None) -> None:
    calm = Phase("calm", CALM, CALM, {})
    assert not list(Phase("well", CALM, CALM, {"engine": reading()}, AttackResult(1, 1, 0, [])).problems(calm))
    assert list(Phase("badly", result, CALM, {"engine": service}, made).problems(calm))
    assert list(Phase("badly", CALM, result, {"engine": service}, made).problems(calm))


def test_attacks_that_fill_the_engine_are_measured_beside_a_full_one() -> None:
    full, slow = LoadResult(100, [0.1] * 100, [8.0] * 100), LoadResult(100, [0.1] * 100, [12.0] * 100)

    def problems(result: LoadResult, *, fills: bool) -> list[str]:
        phase = Phase("it", result, None, {}, AttackResult(1, 1, 0, []), fills=fills)
        return list(phase.problems(Phase("calm", CALM, None, {}), Phase("full", full, None, {})))

    assert problems(slow, fills=False) == ["p99 12.00 s, calm 0.20 s"]
    assert not problems(slow, fills=True)
    slower = LoadResult(100, [0.1] * 100, [8.0 * SLOWER_THAN_FULL + 1.0] * 100)
    assert problems(slower, fills=True) == ["p99 21.00 s, calm 0.20 s, beside a full engine 8.00 s"]


def test_what_is_held_is_compared_with_what_was_held_at_rest() -> None:
    rest = {"fds": 20, "threads": 10, "open calls": 3}
    assert not excess_over(rest, {**rest, "fds": 20 + SPARE_FDS}, connections=True)
    assert excess_over(rest, {**rest, "fds": 50}, connections=True) == {"fds": 30}
    assert not excess_over(rest, {**rest, "fds": 50}, connections=False)
    assert excess_over(rest, {**rest, "open calls": 4, "ledgers": 2}, connections=True) == {
        "open calls": 1,
        "ledgers": 2,
    }


def test_every_endpoint_that_reads_a_body_of_the_ring_has_a_case_of_stalls() -> None:
    asked = {endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST" and endpoint.asks_ring}
    rpc = {path for path in asked if path.startswith("/ringline.")}
    assert {path for path, _ in CASES.values()} - rpc == asked - rpc
    assert all(len(make()) <= 4 << 20 for _, make in CASES.values())
